// The kernel that an op gets for the dispatch key `Python`.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "block.h"

namespace tidelog {

using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

const DispatchKeySet PYTHON({DispatchKey::Python, DispatchKey::PythonTLSSnapshot});
const DispatchKeySet BELOW_PYTHON(DispatchKeySet::FULL_AFTER, DispatchKey::Python);
constexpr int64_t CLEAN = 1;             // `_record.CLEAN`
constexpr int64_t TOLD_EVERY = 1 << 20;  // the heap hears of so many bytes at once

// Calls `visit` with each tensor of a value; false: it holds something else that has storages, or `visit`
// has said false.
template <class Visit>
bool each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    // A number of Python's, as an op of tensors gets it, is no tensor to a mode either.
    return !tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number() || visit(tensor);
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& item : value.toListRef())
      if (!each_tensor(item, visit)) return false;
    return true;
  }
  return !value.isStorage() && !value.isObject() && !value.isTuple() && !value.isGenericDict();
}

// Whether a tensor is no more than its storage: no subclass with a dispatch of its own, not sparse.
bool is_plain(const at::Tensor& tensor) {
  return tensor.has_storage() && !tensor.key_set().has(DispatchKey::Python) && !tensor.is_nested();
}

// Ops that did not go through Python.
std::atomic<int64_t> passed{0};

// The kernel of one overload for the dispatch key `Python`.
class Kernel final : public c10::OperatorKernel {
 public:
  Kernel(const c10::OperatorHandle& op, PyObject* func, PyObject* name, uint64_t written)
      : python_(op.getComputedKernelForDispatchKey(DispatchKey::Python)),
        func_(borrowed(func)),
        name_(borrowed(name)),
        arguments_(op.schema().arguments().size()),
        returns_(op.schema().returns().size()),
        written_(written) {
    for (const auto& each : op.schema().returns())
      makes_ |= each.alias_info() == nullptr || !each.alias_info()->isWrite();
  }

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    Run run;
    if (is_open.load(std::memory_order_relaxed)) {
      Gil gil;
      run.block = block_of_this_thread();
      if (run.block) run.path = path_of(run, *stack);
    }
    if (run.path == Path::python) {
      python_.callBoxed(op, keys, stack);
      return;
    }
    ++passed;
    {
      c10::impl::ExcludeDispatchKeyGuard guard(PYTHON);
      op.redispatchBoxed(keys & BELOW_PYTHON, stack);
    }
    if (makes_ || run.needs != 0) ran(run, *stack);
  }

 private:
  enum class Path { python, quiet, planned };

  // One op on its way.
  struct Run {
    std::shared_ptr<Block> block;
    Path path = Path::python;
    int64_t index = -1;  // in the step, where a plan is followed
    int64_t needs = 0;   // bytes of its results, by the plan
    int64_t room = 0;    // bytes that unmet storages may take before Python is asked
    c10::SmallVector<const c10::StorageImpl*, 4> used;  // the storages of its arguments
  };

  Path path_of(Run& run, const Stack& stack) const {
    PyObject* ledger = run.block->ledger.get();
    // Frames that are entered from here on would be compiled.
    if (checked(PyObject_CallNoArgs(get_compiler)).get() != Py_None) return Path::python;
    if (is_true(ledger, names().expects_buckets)) return Path::python;
    if (!is_true(ledger, names().quiet)) return is_as_planned(run, stack) ? Path::planned : Path::python;
    bool are_settled = each_argument(stack, [&](size_t, const at::Tensor& tensor) {
      if (!is_plain(tensor)) return false;
      run.used.push_back(tensor.storage().unsafeGetStorageImpl());
      return !has_update(*run.block, *run.used.back());
    });
    if (!are_settled) return Path::python;
    run.room = number(ledger, names().peak) - number(ledger, names().counted);
    return Path::quiet;
  }

  // As `Hook._watchful`, up to where the op runs.
  bool is_as_planned(Run& run, const Stack& stack) const {
    const Block& block = *run.block;
    PyObject* steps = block.steps.get();
    if (block.plan.get() == nullptr || attribute(steps, names().plan).get() != block.plan.get()) return false;
    run.index = number(steps, names().next_op);
    size_t index = static_cast<size_t>(run.index);
    if (index >= block.kernels.size() || block.kernels[index] != this) return false;
    run.needs = block.needs[index];
    if (block.due[index] || *block.attention != 0 || !has_room(run, run.needs)) return false;
    if (!is_settled(run, stack)) return false;
    set_number(steps, names().next_op, run.index + 1);
    return true;
  }

  // Whether so many bytes more stay below the limit. The dead are crossed off only where that may be enough.
  static bool has_room(Run& run, int64_t needs) {
    PyObject* ledger = run.block->ledger.get();
    int64_t limit = number(ledger, names().limit);
    run.room = limit - number(ledger, names().counted);
    if (unmet().bytes() + needs <= run.room) return true;
    bool has = number(ledger, names().live) + needs <= limit;
    run.room = limit - number(ledger, names().counted);
    return has;
  }

  // As `Hook._is_settled`.
  bool is_settled(Run& run, const Stack& stack) const {
    PyObject* ledger = run.block->ledger.get();
    std::vector<Held> modified;
    bool settled = each_argument(stack, [&](size_t position, const at::Tensor& tensor) {
      if (!is_plain(tensor)) return false;
      const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
      run.used.push_back(&storage);
      if (UnmetList::of(storage) != nullptr) return true;
      PyObject* object = storage.pyobj_slot()->load_pyobj();
      if (object == nullptr || has_update(*run.block, storage)) return false;
      Held record = record_in(object);
      if (record.get() == nullptr || attribute(record.get(), names().ledger).get() != ledger) return false;
      int64_t state = number(record.get(), names().state);
      if (state == CLEAN && (written_ >> position & 1) != 0) modified.push_back(std::move(record));
      return state == 0 || state == CLEAN;
    });
    if (!settled) return false;
    for (const Held& record : modified) call(ledger, names().modified, record.get());
    return true;
  }

  template <class Visit>
  bool each_argument(const Stack& stack, const Visit& visit) const {
    for (size_t position = 0; position < arguments_; ++position) {
      const c10::IValue& value = stack[stack.size() - arguments_ + position];
      if (!each_tensor(value, [&](const at::Tensor& tensor) { return visit(position, tensor); })) return false;
    }
    return true;
  }

  // What the hook does once an op has run. Most of it without Python.
  void ran(const Run& run, const Stack& stack) const {
    std::vector<std::pair<int64_t, at::Tensor>> others;
    int64_t slot = 0;
    for (size_t place = stack.size() - returns_; makes_ && place < stack.size(); ++place)
      each_tensor(stack[place], [&](const at::Tensor& tensor) {
        if (!add_unmet(run, tensor, Birth{func_.get(), name_.get(), run.index, slot})) others.emplace_back(slot, tensor);
        ++slot;
        return true;
      });
    run.block->allocated += run.needs;
    if (others.empty() && unmet().bytes() <= run.room && run.block->allocated < TOLD_EVERY) return;
    Gil gil;
    for (const auto& [place, tensor] : others) look_at(run, place, tensor);
    tell(run);
  }

  // Whether a result's storage is known here now.
  static bool add_unmet(const Run& run, const at::Tensor& tensor, const Birth& birth) {
    if (!is_plain(tensor)) return false;
    const c10::Storage& storage = tensor.storage();
    const c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
    if (std::find(run.used.begin(), run.used.end(), &impl) != run.used.end()) return true;
    if (UnmetList::of(impl) != nullptr || impl.nbytes() == 0) return true;
    if (impl.pyobj_slot()->load_pyobj() != nullptr || impl.device_type() != c10::DeviceType::CPU) return false;
    if (!UnmetList::can_be(impl)) return false;
    unmet().add(storage, birth);
    return true;
  }

  // A result that Python may know.
  void look_at(const Run& run, int64_t slot, const at::Tensor& tensor) const {
    PyObject* ledger = run.block->ledger.get();
    if (!is_plain(tensor)) {  // a sparse one has others for its memory
      call(run.block->hook.get(), names().made, checked(THPVariable_Wrap(tensor)).get());
      return;
    }
    Held object = checked(THPStorage_Wrap(tensor.storage()));
    Held record = record_in(object.get());
    if (record.get() != nullptr && attribute(record.get(), names().ledger).get() == ledger) return;
    if (run.path == Path::quiet) {
      call(ledger, names().register_, object.get(), func_.get());
    } else {
      Held birth = place_of(run.index, slot, name_.get());
      call(ledger, record.get() == nullptr ? names().born : names().record_of, object.get(), birth.get());
    }
  }

  static void tell(const Run& run) {
    Block& block = *run.block;
    PyObject* ledger = block.ledger.get();
    if (run.path == Path::quiet) {
      if (number(ledger, names().counted) + unmet().bytes() > number(ledger, names().peak))
        call(ledger, names().has_grown);
      return;
    }
    if (block.allocated >= TOLD_EVERY) {
      Held size = checked(PyLong_FromLongLong(block.allocated.exchange(0)));
      call(block.heap.get(), names().allocated, size.get());
    }
    Run now = run;
    if (!has_room(now, 0)) call(block.steps.get(), names().end_op);
  }

  const c10::SafeKernelFunction python_;  // what torch has for the dispatch key
  const Held func_;                       // the overload, in Python
  const Held name_;
  const size_t arguments_, returns_;
  const uint64_t written_;  // bit i: it writes argument i
  bool makes_ = false;      // whether a result may have a storage that no argument has
};

}  // namespace tidelog
