// The kernel of an op, which takes its arguments from a stack.
#pragma once

#include "call.h"
#include "unusual.h"

namespace tidelog {

// Kernel of one overload.
class Boxed final : public c10::OperatorKernel, public Kernel {
 public:
  explicit Boxed(const c10::OperatorHandle& op)
      : Kernel(makes(op.schema())),
        beneath_(op),
        arguments_(op.schema().arguments().size()),
        returns_(op.schema().returns().size()) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    Observer observer = observer_of(keys);
    if (observer == Observer::nobody) return beneath_(op, keys, stack);
    {
      Tensors arguments(*stack, arguments_);
      if (arguments.have_meta() || makes_meta(*stack)) return beneath_(op, keys, stack);
      Run run;
      if (observer == Observer::block && takes(run, arguments, [&] { return Numbers(*stack, arguments_); }) &&
          carry_out(run, stack, [&] { beneath_(op, keys, stack); }))
        return done(run, Tensors(*stack, makes_ ? returns_ : 0));
    }
    do_unusual(observer, op, keys, stack);
  }

  const Beneath& beneath() const { return beneath_; }

 private:
  // Has torch run it, with the arguments on a stack. False: it is to run again.
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

  // Returns whether the boxed is a factory that is to make a tensor without bytes.
  bool makes_meta(const Stack& stack) const {
    return beneath_.is_here() &&
           std::any_of(stack.end() - static_cast<ptrdiff_t>(arguments_), stack.end(),
                       [](const c10::IValue& each) { return each.isDevice() && each.toDevice().is_meta(); });
  }

  static bool makes(const c10::FunctionSchema& schema) {
    const auto& returns = schema.returns();
    return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& each) {
      return each.alias_info() == nullptr || !each.alias_info()->isWrite();
    });
  }

  void do_unusual(Observer observer, const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    Gil gil;
    auto block = open_block();
    if (!block) {  // it has ended meanwhile
      WithoutGil unlocked;
      return beneath_(op, keys, stack);
    }
    if (func_ == nullptr) func_ = overload_of(op).release();
    Call call(op, func_, keys, beneath_, *stack);
    if (observer == Observer::bystander)
      call.run_in(block->python.bystander);
    else
      Kernel::do_unusual(block, call, observer == Observer::block_inside);
    call.replace_on(stack);
  }

  const Beneath beneath_;
  const size_t arguments_, returns_;
  PyObject* func_ = nullptr;  // in Python; of its first use there
};

}  // namespace tidelog
