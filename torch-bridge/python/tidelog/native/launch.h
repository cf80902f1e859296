// Launches of kernels that torch.compile made, and of what allocates for them, as ops: `Hook.launch` for the usual
// ones.
#pragma once

#include "kernel.h"

namespace tidelog {

// Of one kernel, or of what allocates buffers of one type.
class Launch final : public Kernel {
 public:
  // `arguments`: how many each has.
  Launch(std::unique_ptr<const Facts> facts, bool makes, size_t arguments) : Kernel(makes), arguments_(arguments) {
    adopt(std::move(facts));
  }

  // Launches it, or has Python do so.
  Held operator()(PyObject* arguments, PyObject* python) const {
    Run run;
    if (!takes(run, arguments)) {
      InPython in_python;
      Held result = checked(PyObject_CallFunctionObjArgs(python, facts_->func.get(), arguments, nullptr));
      if (run.learns) learn(run, results_in(result));
      return result;
    }
    Held result = carry_out(run, [&] { return checked(PyObject_Call(facts_->func.get(), arguments, nullptr)); });
    done(run, results_in(result));
    return result;
  }

 private:
  bool takes(Run& run, PyObject* arguments) const {
    // In an op it is a part of that.
    if (observer_of(DispatchKeySet()) != Observer::block) return false;
    if (static_cast<size_t>(PyTuple_GET_SIZE(arguments)) != arguments_) return false;
    c10::ArrayRef<PyObject*> values(reinterpret_cast<PyTupleObject*>(arguments)->ob_item, arguments_);
    return Kernel::takes(run, Tensors(values), [&] { return Numbers(values); });
  }

  Tensors results_in(const Held& result) const {
    PyObject* value = result.get();
    return Tensors(c10::ArrayRef<PyObject*>(&value, makes_ ? 1 : 0));
  }

  const size_t arguments_;
};

}  // namespace tidelog
