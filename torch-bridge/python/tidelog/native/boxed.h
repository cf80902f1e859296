// The kernels that an op gets, which take its arguments from a stack.
#pragma once

#include "kernel.h"

namespace tidelog {

const DispatchKeySet PYTHON({DispatchKey::Python, DispatchKey::PythonTLSSnapshot});
const DispatchKeySet BELOW_PYTHON(DispatchKeySet::FULL_AFTER, DispatchKey::Python);

// Of one overload: the one for the dispatch key `Python`.
class Boxed final : public c10::OperatorKernel, public Kernel {
 public:
  // `is_product`: it writes a product of its last two matrices.
  Boxed(const c10::OperatorHandle& op, PyObject* func, PyObject* name, uint64_t written, uint64_t seed, Looks looks,
        bool is_product, bool repeats)
      : Kernel(func, name, written, seed, looks, makes(op.schema()), repeats),
        python_(op.getComputedKernelForDispatchKey(DispatchKey::Python)),
        arguments_(op.schema().arguments().size()),
        returns_(op.schema().returns().size()),
        is_product_(is_product) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    Run run;
    bool is_ours = takes(run, *stack) && carry_out(run, stack, [&] {
                     c10::impl::ExcludeDispatchKeyGuard guard(PYTHON);
                     op.redispatchBoxed(keys & BELOW_PYTHON, stack);
                   });
    if (is_ours) return done(run, results_in(*stack));
    python_.callBoxed(op, keys, stack);
    if (run.learns) learn(run, results_in(*stack));
  }

  // Has torch run it, with the arguments on a stack. False: Python has to.
  template <class Redispatch>
  bool carry_out(Run& run, const Stack* stack, const Redispatch& redispatch) const {
    size_t size = stack->size();
    try {
      Kernel::carry_out(run, redispatch);
      return true;
    } catch (const c10::OutOfMemoryError&) {
      if (stack->size() != size || !gives_back(run)) throw;
      return false;
    }
  }

  using Kernel::takes;
  bool takes(Run& run, const Stack& stack) const {
    Tensors arguments(stack, arguments_);
    if (is_product_ && !arguments.are_of_product()) return false;
    return takes(run, arguments, [&] { return Numbers(stack, arguments_); });
  }

  // Where one of them may have a storage that no argument has.
  Tensors results_in(const Stack& stack) const { return Tensors(stack, makes_ ? returns_ : 0); }

 private:
  static bool makes(const c10::FunctionSchema& schema) {
    const auto& returns = schema.returns();
    return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& each) {
      return each.alias_info() == nullptr || !each.alias_info()->isWrite();
    });
  }

  const c10::SafeKernelFunction python_;  // what torch has for the dispatch key
  const size_t arguments_, returns_;
  const bool is_product_;
};

// Where an op runs that has passed Python.
ThreadKeys past_python(ThreadKeys keys, DispatchKey from) {
  if (from == DispatchKey::Fake) keys.included_ = keys.included_.remove(from);
  keys.excluded_ = keys.excluded_ | PYTHON;
  return keys;
}

// Whether the mode is not only hidden from this thread: by torch's `_DisableTorchDispatch`.
bool is_cut_off(DispatchKey key) {
  return key == DispatchKey::Fake && c10::impl::tls_is_dispatch_key_excluded(DispatchKey::PythonTLSSnapshot);
}

// The one for where the mode is hidden. Its arguments are on a stack, too.
class PassingBoxed final : public c10::OperatorKernel {
 public:
  PassingBoxed(const Boxed& kernel, c10::KernelFunction otherwise)
      : kernel_(kernel), otherwise_(std::move(otherwise)) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    Kernel::Run run;
    bool is_ours = !is_cut_off(DispatchKey::Fake) && kernel_.takes(run, *stack) && kernel_.carry_out(run, stack, [&] {
      c10::impl::ForceDispatchKeyGuard guard(past_python(c10::impl::tls_local_dispatch_key_set(), DispatchKey::Fake));
      op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, DispatchKey::Fake), stack);
    });
    if (is_ours) return kernel_.done(run, kernel_.results_in(*stack));
    otherwise_.callBoxed(op, keys, stack);
  }

 private:
  const Boxed& kernel_;  // lives as long as the process
  const c10::KernelFunction otherwise_;
};

}  // namespace tidelog
