// Kernels of the operators that programs call most, without a stack: each takes the arguments as torch's own do. What
// they decide is decided in `Kernel`. Where an op is for Python it goes there by the stack.
#pragma once

#include <ATen/core/Tensor.h>

#include "boxed.h"

namespace tidelog {

// Visits storages as those of `tensors.h` do, for an argument or a result as C++ has it.
template <class Visit>
void each_holder(const at::Tensor& tensor, const Visit& visit) {
  if (tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) visit(tensor);
}

// Visits values that have no storage, and no part that has one. Of the rest, no operator of `operators.h` has any.
template <class Visit, class Value>
  requires(std::is_arithmetic_v<Value> || std::is_same_v<Value, at::Scalar> || std::is_same_v<Value, c10::SymInt>)
void each_holder(const Value&, const Visit&) {}

template <class Visit, class Value>
  requires(std::is_arithmetic_v<Value> || std::is_same_v<Value, c10::SymInt>)
void each_holder(const c10::ArrayRef<Value>&, const Visit&) {}

template <class Visit, class Value>
  requires(!std::is_same_v<Value, at::Tensor>)
void each_holder(const std::optional<Value>&, const Visit&) {}

template <class Visit, class Value>
void each_holder(const at::OptionalArrayRef<Value>&, const Visit&) {}

// Visits whole numbers, as a stack has them.
template <class Value, class Visit>
void each_number(const Value& value, const Visit& visit) {
  if constexpr (std::is_integral_v<Value> || std::is_enum_v<Value>) visit(static_cast<int64_t>(value));
}

template <class Visit>
void each_number(const c10::SymInt& value, const Visit& visit) {
  if (auto number = value.maybe_as_int()) visit(*number);
}

template <class Visit>
void each_number(const at::Scalar& value, const Visit& visit) {
  if (!value.isSymbolic() && value.isIntegral(/*includeBool=*/true)) visit(value.toLong());
}

template <class Value, class Visit>
void each_number(const c10::ArrayRef<Value>& values, const Visit& visit) {
  for (const Value& each : values) each_number(each, visit);
}

template <class Value, class Visit>
void each_number(const std::optional<Value>& value, const Visit& visit) {
  if (value) each_number(*value, visit);
}

template <class Value, class Visit>
void each_number(const at::OptionalArrayRef<Value>& values, const Visit& visit) {
  if (values) each_number(*values, visit);
}

// An op's kernel. `Op`: torch's description of it, of the namespace `at::_ops`.
template <class Op, class Schema = typename Op::schema>
struct Unboxed;

template <class Op, class Return, class... Arguments>
struct Unboxed<Op, Return(Arguments...)> final : c10::OperatorKernel {
  // `boxed`: of the same op. It lives as long as the process.
  Unboxed(const c10::OperatorHandle& op, const Kernel& kernel, c10::KernelFunction boxed)
      : op_(op), kernel_(kernel), boxed_(std::move(boxed)) {}

  Return operator()(DispatchKeySet keys, Arguments... arguments) {
    Observer observer = observer_of(keys);
    auto known = std::tie(std::as_const(arguments)...);
    Tensors tensors = observer != Observer::nobody ? Tensors(known) : Tensors();
    if (observer == Observer::nobody || tensors.have_meta())
      return Op::redispatch(keys & BELOW, std::forward<Arguments>(arguments)...);
    Kernel::Run run;
    if (observer == Observer::block && kernel_.takes(run, tensors, [&] { return Numbers(known); })) {
      try {
        Return result = kernel_.carry_out(run, [&]() -> Return { return Op::redispatch(keys & BELOW, arguments...); });
        kernel_.done(run, Tensors(std::tie(std::as_const(result))));
        return result;
      } catch (const c10::OutOfMemoryError&) {
        if (!kernel_.gives_back(run)) throw;
      }
    }
    return boxed_.template call<Return, Arguments...>(op_, keys, std::forward<Arguments>(arguments)...);
  }

  static c10::KernelFunction make(const c10::OperatorHandle& op, const Kernel& kernel, c10::KernelFunction boxed) {
    auto made = std::make_unique<Unboxed>(op, kernel, std::move(boxed));
    return c10::KernelFunction::makeFromUnboxedFunctor<false, Unboxed>(std::move(made));
  }

 private:
  const c10::OperatorHandle op_;
  const Kernel& kernel_;
  const c10::KernelFunction boxed_;
};

}  // namespace tidelog
