// A call of one of torch's ops, with its arguments and results as C++ and as Python have them.
#pragma once

#include <torch/csrc/jit/python/pybind_utils.h>

#include "op.h"

namespace tidelog {

// Kernel of torch for an op at the key of this module's kernels, or below it.
class Beneath {
 public:
  explicit Beneath(const c10::OperatorHandle& op) {
    if (op.hasKernelForDispatchKey(DispatchKey::BackendSelect))
      own_.emplace(op.getComputedKernelForDispatchKey(DispatchKey::BackendSelect));
  }

  // Returns whether the beneath is at the key itself: of a factory, which has no tensor to tell its device by.
  bool is_here() const { return own_.has_value(); }

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) const {
    if (own_)
      own_->callBoxed(op, keys, stack);
    else
      op.redispatchBoxed(keys & BELOW, stack);
  }

 private:
  std::optional<c10::SafeKernelFunction> own_;
};

// The function for an op in Python, such as torch.ops.aten.add.Tensor.
Held overload_of(const c10::OperatorHandle& op) {
  const std::string &name = op.operator_name().name, &overload = op.operator_name().overload_name;
  size_t colons = name.find("::");
  Held found = checked(PyImport_ImportModule("torch"));
  for (const std::string& part :
       {std::string("ops"), name.substr(0, colons), name.substr(colons + 2), overload.empty() ? "default" : overload})
    found = checked(PyObject_GetAttrString(found.get(), part.c_str()));
  return found;
}

class Call final : public Op {
 public:
  // `func`: the op in Python. The arguments are the last values of the stack.
  Call(const c10::OperatorHandle& op, PyObject* func, DispatchKeySet keys, const Beneath& beneath, const Stack& stack)
      : Call(op, func, keys, beneath,
             Stack(stack.end() - static_cast<ptrdiff_t>(op.schema().arguments().size()), stack.end()),
             c10::impl::tls_local_dispatch_key_set()) {}

  size_t count() const override { return arguments_.size(); }
  Tensors arguments() const override { return Tensors(arguments_, arguments_.size()); }
  Numbers numbers() const override { return Numbers(arguments_, arguments_.size()); }
  Tensors results() const override { return Tensors(results_, results_.size()); }

  void run() override {
    Stack stack = arguments_;
    {
      WithoutGil unlocked;
      Where now = where();  // between two ops, if the op is to be taken apart here
      c10::impl::ForceDispatchKeyGuard guard(thread_);
      At here(now);
      beneath_(op_, keys_, &stack);
    }
    has_run(std::move(stack));
  }

  void run_to_false() override { has_run({false}); }

  void run_in(const Held& function) override {
    InPython in_python;
    Held self = checked(PyCapsule_New(this, nullptr, nullptr));
    Held run = checked(PyCFunction_New(&RUN, self.get()));
    const Given& of = given();
    PyObject* result = Services::try_call(function, func_, of.args.get(), of.kwargs.get(), run.get());
    PyCapsule_SetContext(self.get(), this);  // it has ended: whoever has kept `run` calls nothing
    checked(result);
  }

  std::vector<std::unique_ptr<Op>> halves() const override {
    size_t length = 0;
    for (const c10::IValue& each : arguments_)
      if (each.isList()) length = std::max(length, each.toListRef().size());
    std::vector<std::unique_ptr<Op>> pieces;
    if (length < 2) return pieces;
    for (auto [begin, end] : {std::pair(size_t{0}, length / 2), std::pair(length / 2, length)}) {
      Stack piece;
      for (const c10::IValue& each : arguments_)
        piece.push_back(each.isList() && each.toListRef().size() == length ? cut(each, begin, end) : each);
      pieces.emplace_back(new Call(op_, func_, keys_, beneath_, std::move(piece), thread_));
    }
    return pieces;
  }

  // Lists are put together again, result by result.
  void join(const std::vector<std::unique_ptr<Op>>& pieces) override {
    Stack joined;
    for (const auto& piece : pieces) {
      const Stack& results = static_cast<const Call&>(*piece).results_;
      for (size_t place = 0; place < results.size(); ++place) {
        if (place == joined.size())
          joined.push_back(results[place].isList() ? c10::IValue(results[place].toList().copy()) : results[place]);
        else if (results[place].isList())
          joined[place].toList().append(results[place].toList());
      }
    }
    has_run(std::move(joined));
  }

  // The op's results at the end of a stack, in place of its arguments.
  void replace_on(Stack* stack) const {
    stack->resize(stack->size() - arguments_.size());
    stack->insert(stack->end(), results_.begin(), results_.end());
  }

  PyObject* func() const override { return func_; }

  const Given& given() override {
    if (!given_) given_.emplace(in_python_form());
    return *given_;
  }

  Held result() override {
    if (result_.get() == nullptr)
      result_ = results_.empty() ? borrowed(Py_None) : results_.size() == 1 ? wrap_alias(results_[0]) : wrap(results_);
    return borrowed(result_.get());
  }

 private:
  Call(const c10::OperatorHandle& op, PyObject* func, DispatchKeySet keys, const Beneath& beneath, Stack arguments,
       const c10::impl::LocalDispatchKeySet& thread)
      : op_(op), func_(func), keys_(keys), beneath_(beneath), arguments_(std::move(arguments)), thread_(thread) {}

  void has_run(Stack results) {
    results_ = std::move(results);
    result_ = Held(nullptr);
  }

  static c10::IValue cut(const c10::IValue& list, size_t begin, size_t end) {
    c10::List<c10::IValue> all = list.toList();
    c10::impl::GenericList piece(all.elementType());
    for (size_t place = begin; place < end; ++place) piece.push_back(all.get(place));
    return piece;
  }

  Given in_python_form() const {
    const auto& known = op_.schema().arguments();
    Held kwargs = checked(PyDict_New());
    size_t by_position = 0;
    while (by_position < known.size() && !known[by_position].kwarg_only()) ++by_position;
    Held args = checked(PyTuple_New(static_cast<Py_ssize_t>(by_position)));
    for (size_t place = 0; place < known.size(); ++place) {
      Held value = wrap_alias(arguments_[place]);
      if (place < by_position)
        PyTuple_SET_ITEM(args.get(), static_cast<Py_ssize_t>(place), value.release());
      else
        checked(PyDict_SetItemString(kwargs.get(), known[place].name().c_str(), value.get()));
    }
    return {std::move(args), std::move(kwargs)};
  }

  static Held wrap(const c10::IValue& value) { return Held(torch::jit::toPyObject(value).release().ptr()); }

  static Held wrap(const Stack& values) {
    Held tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
    for (size_t place = 0; place < values.size(); ++place)
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(place), wrap_alias(values[place]).release());
    return tuple;
  }

  // Wraps an alias. A value without an object in Python stays so: who called the op from C++ may give its result one of
  // another type, once, and autograd asks whether somebody else has a gradient.
  static Held wrap_alias(const c10::IValue& value) {
    if (value.isTensor()) return wrap(alias_of(value.toTensor()));
    if (!value.isTensorList() && !value.isOptionalTensorList()) return wrap(value);
    auto items = value.toListRef();
    Held list = checked(PyList_New(static_cast<Py_ssize_t>(items.size())));
    for (size_t place = 0; place < items.size(); ++place)
      PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(place), wrap_alias(items[place]).release());
    return list;
  }

  static at::Tensor alias_of(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr) return tensor;
    if (tensor.key_set().has(DispatchKey::Python)) return tensor;
    return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
  }

  static PyObject* run_of(PyObject* self, PyObject*) {
    HANDLE_TH_ERRORS
    TORCH_CHECK(PyCapsule_GetContext(self) == nullptr, "the op has ended");
    auto* call = static_cast<Call*>(PyCapsule_GetPointer(self, nullptr));
    call->run();
    return call->result().release();
    END_HANDLE_TH_ERRORS
  }

  static inline PyMethodDef RUN = {"run", run_of, METH_NOARGS, "Has torch run the op with its arguments."};

  const c10::OperatorHandle& op_;
  PyObject* const func_;
  const DispatchKeySet keys_;
  const Beneath& beneath_;
  const Stack arguments_;
  const c10::impl::LocalDispatchKeySet thread_;  // the keys of this thread
  std::optional<Given> given_;
  Stack results_;  // of the last run
  Held result_{nullptr};
};

}  // namespace tidelog
