// An op that is handed to Python: a function is called with it, its arguments, and what has torch run it.
#pragma once

#include <torch/csrc/jit/python/pybind_utils.h>

#include "tensors.h"

namespace tidelog {

// What torch has for an op at the key of this module's kernels, or below it.
class Beneath {
 public:
  explicit Beneath(const c10::OperatorHandle& op) {
    if (op.hasKernelForDispatchKey(DispatchKey::BackendSelect))
      own_.emplace(op.getComputedKernelForDispatchKey(DispatchKey::BackendSelect));
  }

  // Whether it is at the key itself: of a factory, which has no tensor to tell its device by.
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

// One op, as long as Python has it. All is called with Python's lock held.
class Call {
 public:
  // The last values of the stack are the op's arguments.
  Call(const c10::OperatorHandle& op, DispatchKeySet keys, const Beneath& beneath, const Stack& stack)
      : op_(op),
        keys_(keys),
        beneath_(beneath),
        arguments_(stack.end() - op.schema().arguments().size(), stack.end()),
        thread_(c10::impl::tls_local_dispatch_key_set()) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Calls a function with the op, and has the op's results at the end of the stack, in place of its arguments.
  void in_python(PyObject* function, PyObject* overload, Stack* stack) {
    // What the function does itself is seen by nobody, neither by autograd nor by other modes.
    c10::impl::ExcludeDispatchKeyGuard none_above(ABOVE);
    At inside(Where::inside);
    Held self = checked(PyCapsule_New(this, nullptr, nullptr));
    Held run = checked(PyCFunction_New(&RUN, self.get()));
    auto [args, kwargs] = in_python_form();
    PyObject* result = PyObject_CallFunctionObjArgs(function, overload, args.get(), kwargs.get(), run.get(), nullptr);
    PyCapsule_SetContext(self.get(), this);  // it has ended: whoever has kept `run` calls nothing
    Held found = checked(result);
    stack->resize(stack->size() - arguments_.size());
    if (found.get() == result_.get())
      stack->insert(stack->end(), results_.begin(), results_.end());
    else
      push(found.get(), stack);
  }

 private:
  // Arguments by position, and those by name.
  std::pair<Held, Held> in_python_form() const {
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

  void push(PyObject* result, Stack* stack) const {
    const auto& returns = op_.schema().returns();
    if (returns.size() == 1) return stack->push_back(torch::jit::toIValue(result, returns[0].type()));
    for (size_t place = 0; place < returns.size(); ++place) {
      Held each = checked(PySequence_GetItem(result, static_cast<Py_ssize_t>(place)));
      stack->push_back(torch::jit::toIValue(each.get(), returns[place].type()));
    }
  }

  // Has torch run the op, as it would have without us.
  PyObject* run() {
    Stack stack = arguments_;
    {
      WithoutGil unlocked;
      Where now = where();  // between two ops, if the op is to be taken apart here
      c10::impl::ForceDispatchKeyGuard guard(thread_);
      At here(now);
      beneath_(op_, keys_, &stack);
    }
    results_ = std::move(stack);
    result_ = results_.empty() ? borrowed(Py_None) : results_.size() == 1 ? wrap_alias(results_[0]) : wrap(results_);
    return borrowed(result_.get()).release();
  }

  static Held wrap(const Stack& values) {
    Held tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
    for (size_t place = 0; place < values.size(); ++place)
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(place), wrap_alias(values[place]).release());
    return tuple;
  }

  // What has no object in Python is none the wiser: who called the op from C++ may give its result one of another type,
  // once, and autograd asks whether somebody else has a gradient.
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
    return static_cast<Call*>(PyCapsule_GetPointer(self, nullptr))->run();
    END_HANDLE_TH_ERRORS
  }

  static inline PyMethodDef RUN = {"run", run_of, METH_NOARGS, "Has torch run the op with its arguments."};

  const c10::OperatorHandle& op_;
  const DispatchKeySet keys_;
  const Beneath& beneath_;
  const Stack arguments_;
  const InPython in_python_;
  const c10::impl::LocalDispatchKeySet thread_;  // the keys of this thread
  Held result_{nullptr};                         // of the last run, and what it is in C++
  Stack results_;
};

}  // namespace tidelog
