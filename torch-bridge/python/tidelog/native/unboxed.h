// The same kernels for the operators that programs call most, without a stack: each takes the arguments as torch's own
// do. What they decide is decided in `Kernel`. Where an op is for Python it goes there by the stack.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>

#include "boxed.h"

namespace tidelog {

// As those of `tensors.h`, for an argument or a result as C++ has it.
template <class Visit>
bool each_tensor(const at::Tensor& tensor, const Visit& visit) {
  return !tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number() || visit(tensor);
}

// Those that have no storage, and no part that has one. Of the rest, no operator of `operators.h` has any.
template <class Visit, class Value>
  requires(std::is_arithmetic_v<Value> || std::is_same_v<Value, at::Scalar> || std::is_same_v<Value, c10::SymInt>)
bool each_tensor(const Value&, const Visit&) {
  return true;
}

template <class Visit, class Value>
  requires(std::is_arithmetic_v<Value> || std::is_same_v<Value, c10::SymInt>)
bool each_tensor(const c10::ArrayRef<Value>&, const Visit&) {
  return true;
}

template <class Visit, class Value>
  requires(!std::is_same_v<Value, at::Tensor>)
bool each_tensor(const std::optional<Value>&, const Visit&) {
  return true;
}

template <class Visit, class Value>
bool each_tensor(const at::OptionalArrayRef<Value>&, const Visit&) {
  return true;
}

// The same for whole numbers, as a stack has them.
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

// An op's kernels. `Op`: torch's description of it, of the namespace `at::_ops`.
template <class Op, class Schema = typename Op::schema>
struct Kernels;

template <class Op, class Return, class... Arguments>
struct Kernels<Op, Return(Arguments...)> {
  // For the key that an op meets first, for `Python`, and for the one by which ops come where the mode is hidden. In
  // one, as each is compiled with a kernel for stacks besides.
  struct Passing final : c10::OperatorKernel {
    Passing(const c10::OperatorHandle& op, const Kernel& kernel, DispatchKey key, c10::KernelFunction otherwise)
        : op_(op),
          kernel_(kernel),
          otherwise_(std::move(otherwise)),
          key_(key),
          below_(DispatchKeySet::FULL_AFTER, key) {}

    Return operator()(DispatchKeySet keys, Arguments... arguments) {
      if (key_ == DispatchKey::PythonTLSSnapshot) {  // as `Hide`
        Hidden hidden(keys);
        return Op::redispatch(hidden.keys(), std::forward<Arguments>(arguments)...);
      }
      Kernel::Run run;
      if (takes(run, arguments...)) {
        try {
          Return result = kernel_.carry_out(run, [&]() -> Return {
            c10::impl::ForceDispatchKeyGuard guard(past_python(c10::impl::tls_local_dispatch_key_set(), key_));
            return Op::redispatch(keys & below_, arguments...);
          });
          kernel_.done(run, Tensors(std::tie(std::as_const(result))));
          return result;
        } catch (const c10::OutOfMemoryError&) {
          if (!kernel_.gives_back(run)) throw;
        }
      }
      return otherwise_.template call<Return, Arguments...>(op_, keys, std::forward<Arguments>(arguments)...);
    }

   private:
    bool takes(Kernel::Run& run, const std::remove_reference_t<Arguments>&... arguments) const {
      if (is_cut_off(key_)) return false;
      auto known = std::tie(arguments...);
      return kernel_.takes(run, Tensors(known), [&] { return Numbers(known); });
    }

    const c10::OperatorHandle op_;
    const Kernel& kernel_;  // lives as long as the process
    const c10::KernelFunction otherwise_;
    const DispatchKey key_;
    const DispatchKeySet below_;
  };

  static c10::KernelFunction passing(const c10::OperatorHandle& op, const Kernel& kernel, DispatchKey key,
                                     c10::KernelFunction otherwise) {
    auto made = std::make_unique<Passing>(op, kernel, key, std::move(otherwise));
    return c10::KernelFunction::makeFromUnboxedFunctor<false, Passing>(std::move(made));
  }
};

// As the one for where the mode is hidden, for the op that adds up gradients. No stack has what they are added to.
class Sum final : public c10::OperatorKernel {
 public:
  using Add = at::_ops::add_Tensor;

  Sum(const c10::OperatorHandle& op, const Kernel& kernel, c10::KernelFunction otherwise)
      : passing_(op, kernel, DispatchKey::Fake, std::move(otherwise)) {}

  at::Tensor operator()(DispatchKeySet keys, const at::Tensor& sum, const at::Tensor& other, const at::Scalar& alpha) {
    if (!AutogradEngine::is_known || !becomes_in_place(sum, other, alpha, /*stacks=*/0))
      return passing_(keys, sum, other, alpha);
    at::Tensor kept = sum;
    return at::_ops::add__Tensor::redispatch(keys, kept, other, alpha);
  }

 private:
  Kernels<Add>::Passing passing_;
};

}  // namespace tidelog
