// Launches of kernels that get addresses (Triton's, and those that torch.compile made), and of what allocates for them:
// they are ops like any other.
#pragma once

#include "unusual.h"

namespace tidelog {

// One launch.
class Launched final : public Op {
 public:
  // `func`: in Python. Arguments: a tuple, and a dict.
  Launched(PyObject* func, PyObject* args, PyObject* kwargs) : func_(func), given_{borrowed(args), borrowed(kwargs)} {
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(args); ++place)
      values_.push_back(PyTuple_GET_ITEM(args, place));
    PyObject *name, *value;
    for (Py_ssize_t place = 0; PyDict_Next(kwargs, &place, &name, &value);) values_.push_back(value);
  }

  size_t count() const override { return PyTuple_GET_SIZE(given_.args.get()); }
  Tensors arguments() const override { return Tensors(c10::ArrayRef<PyObject*>(values_)); }
  Numbers numbers() const override { return Numbers(c10::ArrayRef<PyObject*>(values_)); }
  Tensors results() const override {
    PyObject* result = result_.get();
    return Tensors(c10::ArrayRef<PyObject*>(&result, result != nullptr ? 1 : 0));
  }

  void run() override {
    InPython in_python;
    c10::impl::ExcludeDispatchKeyGuard no_mode(DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot}));
    result_ = checked(PyObject_Call(func_, given_.args.get(), given_.kwargs.get()));
  }

  // Runs Python itself.
  void run_in(const Held&) override { run(); }

  PyObject* func() const override { return func_; }
  const Given& given() override { return given_; }
  Held result() override { return borrowed(result_.get()); }

 private:
  PyObject* const func_;
  const Given given_;
  c10::SmallVector<PyObject*, 8> values_;
  Held result_{nullptr};
};

// Launches of one kernel, with a number of arguments.
class Launch final : public Kernel {
 public:
  Launch() : Kernel(true) {}

  Held operator()(Launched& op) {
    auto block = open_block();
    Observer observer = block ? observer_of(DispatchKeySet()) : Observer::nobody;
    if (observer == Observer::block_inside)
      do_unusual(block, op, true);
    else if (observer != Observer::block)
      run_as_part(block, op);
    else if (!runs_usually(op))
      do_unusual(block, op, false);
    return op.result();
  }

 private:
  bool runs_usually(Launched& op) const {
    Run run;
    Tensors arguments = op.arguments();
    if (!takes(run, arguments, [&] { return op.numbers(); })) return false;
    carry_out(run, [&] { op.run(); });
    done(run, op.results());
    return true;
  }

  // Runs a launch inside an op: what that uses stays, and what is used here besides comes in.
  void run_as_part(const std::shared_ptr<Block>& block, Launched& op) {
    if (!block) return op.run();
    learn_facts(*block, op);
    Tensors arguments = op.arguments();
    Run run;
    run.block = block;
    if (block->ledger.is_in_child) {
      refuse_in_child(*block, arguments);
    } else if (!block->ledger.quiet) {
      Whole whole;
      Uses uses = asked(run, arguments, op.numbers()).uses();
      if (!uses.empty()) block->step.touch(std::move(uses));
    }
    op.run();
    if (block->ledger.quiet) ran(run, op.results());
  }
};

}  // namespace tidelog
