// Backward passes as autograd runs them where no dispatch mode is entered.
//
// Where a mode is entered, autograd adds gradients up out of place and computes many formulas in slower ways:
// `dispatch_mode_enabled` asks whether there is a mode and the key `Python` is not excluded. So while the engine runs,
// that key is excluded, and ops come by another one, `Fake`. Torch keeps that for modes in C++ that it does not have
// yet. What is registered for it puts all back as it was and hands the op on, to the mode or to its kernel here.
//
// So it is in the forward pass, from where an op begins to where autograd's kernel for it hands it on. What that kernel
// saves of the results it detaches first, for which it calls the mode, if there is one, past the dispatcher.
#pragma once

#include <ATen/core/PythonFallbackKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>

#include "sums.h"

namespace tidelog {

// Which keys a thread has while autograd's engine runs and finds no mode, and those that it would have otherwise.
using ThreadKeys = c10::impl::LocalDispatchKeySet;

ThreadKeys without_mode(ThreadKeys keys) {
  keys.included_ = keys.included_.add(DispatchKey::Fake);
  keys.excluded_ = keys.excluded_.add(DispatchKey::Python);
  return keys;
}

ThreadKeys with_mode(ThreadKeys keys) {
  keys.included_ = keys.included_.remove(DispatchKey::Fake);
  // Torch's `_DisableTorchDispatch` excludes both.
  if (!keys.excluded_.has(DispatchKey::PythonTLSSnapshot)) keys.excluded_ = keys.excluded_.remove(DispatchKey::Python);
  return keys;
}

// What every op meets while the engine runs.
class HandOn final : public c10::OperatorKernel {
 public:
  // `knows_sums`: those that could become others have come here by their own kernel, which found that they do not.
  explicit HandOn(bool knows_sums) : knows_sums_(knows_sums) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const auto& meant = knows_sums_ ? op : sum_in_place_of(op, *stack);
    auto thread = with_mode(c10::impl::tls_local_dispatch_key_set());
    keys = keys.remove(DispatchKey::Fake);
    if (!thread.excluded_.has(DispatchKey::Python) && is_for_python(op, *stack)) keys = keys.add(DispatchKey::Python);
    c10::impl::ForceDispatchKeyGuard guard(thread);
    meant.redispatchBoxed(keys, stack);
  }

 private:
  // Whether a mode or a tensor with a dispatch of its own is there. A hook may leave all modes for a while.
  static bool is_for_python(const c10::OperatorHandle& op, const Stack& stack) {
    size_t count = op.schema().arguments().size();
    return c10::impl::TorchDispatchModeTLS::any_modes_set() || std::any_of(stack.end() - count, stack.end(), has_own);
  }

  static bool has_own(const c10::IValue& value) {
    if (value.isTensor()) return value.toTensor().defined() && value.toTensor().key_set().has(DispatchKey::Python);
    if (!value.isTensorList() && !value.isOptionalTensorList()) return false;
    auto items = value.toListRef();
    return std::any_of(items.begin(), items.end(), has_own);
  }

  const bool knows_sums_;
};

const DispatchKeySet BELOW_SNAPSHOT(DispatchKeySet::FULL_AFTER, DispatchKey::PythonTLSSnapshot);

// Keys for what runs between an op's begin and its kernel for the mode.
class Hidden {
 public:
  explicit Hidden(DispatchKeySet keys) : keys_(keys & BELOW_SNAPSHOT) {
    PyObject* hidden = hidden_mode.load(std::memory_order_relaxed);
    if (hidden == nullptr || mode_of_this_thread() != hidden) return;
    ThreadKeys thread = c10::impl::tls_local_dispatch_key_set();
    if (thread.excluded_.has(DispatchKey::Python))
      return;  // in a backward pass it is hidden, and in a mode there is none
    guard_.emplace(without_mode(thread));
    keys_ = keys_.remove(DispatchKey::Python).add(DispatchKey::Fake);
  }

  DispatchKeySet keys() const { return keys_; }

 private:
  at::impl::MaybeSetTLSOnEntryGuard on_entry_;  // as what torch has registered for all ops; first: it looks at the keys
  DispatchKeySet keys_;
  std::optional<c10::impl::ForceDispatchKeyGuard> guard_;
};

// What an op meets first where there is a mode.
class Hide final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    Hidden hidden(keys);
    op.redispatchBoxed(hidden.keys(), stack);
  }
};

// Whether this torch has the key to itself; then it is ours from here on.
bool can_run_without_mode() {
  static bool can = [] {
    auto& dispatcher = c10::Dispatcher::singleton();
    if (dispatcher.hasBackendFallbackForDispatchKey(DispatchKey::Fake)) return false;
    auto function = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<HandOn>(/*knows_sums=*/false));
    // Never let go of, as kernels.
    new auto(dispatcher.registerFallback(DispatchKey::Fake, std::move(function), "tidelog"));
    return true;
  }();
  return can;
}

}  // namespace tidelog
