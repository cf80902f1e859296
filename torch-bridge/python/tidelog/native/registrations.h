// A kernel for each op that the dispatcher has, also for those that come later.
#pragma once

#include <c10/util/Exception.h>

#include <mutex>
#include <unordered_map>

#include "operators.h"

namespace tidelog {

// Registrations of kernels; they are never let go of, but for an op that is: other threads may run ops at any time.
class Registrations final : public c10::OpRegistrationListener {
 public:
  static Registrations& all() {
    static auto* all = [] {
      auto* made = new Registrations;
      new auto(c10::Dispatcher::singleton().addRegistrationListener(std::unique_ptr<Registrations>(made)));
      return made;
    }();
    return *all;
  }

  // The dispatcher says so of each op, with its lock held: what is registered then would wait for that.
  void onOperatorRegistered(const c10::OperatorHandle& op) override { note(op); }
  void onOperatorDeregistered(const c10::OperatorHandle& op) override { note(op); }

  bool are_due() const { return are_due_.load(std::memory_order_relaxed); }

  // Registers what has come since the last time. Called with Python's lock held.
  void bring_up_to_date() {
    if (!are_due()) return;
    Silent silent;
    c10::WarningUtils::WarningHandlerGuard guard(&silent);
    for (const c10::OperatorName& name : take()) {
      handles_.erase(name);
      kernels_.erase(name);
      auto op = c10::Dispatcher::singleton().findSchema(name);
      if (op && is_whole(*op)) add(*op);
    }
  }

  // Null: there is none.
  Boxed* kernel_of(const c10::OperatorName& name) const {
    auto found = kernels_.find(name);
    return found != kernels_.end() ? found->second : nullptr;
  }

 private:
  // Torch warns of a kernel that takes the place of its own, which is called beneath it.
  struct Silent final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };

  void note(const c10::OperatorHandle& op) {
    std::lock_guard lock(mutex_);
    due_.push_back(op.operator_name());
    are_due_ = true;
  }

  std::vector<c10::OperatorName> take() {
    std::lock_guard lock(mutex_);
    are_due_ = false;
    return std::exchange(due_, {});
  }

  // Returns whether an op is whole: one that is taken apart becomes others, which come here. For some kinds of tensors
  // it may be whole even so.
  static bool is_whole(const c10::OperatorHandle& op) {
    if (op.schema().arguments().size() > ARGUMENTS_MAX) return false;
    if (!op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) return true;
    auto backends = c10::getRuntimeDispatchKeySet(DispatchKey::CompositeExplicitAutograd) |
                    DispatchKeySet({DispatchKey::NestedTensorCPU, DispatchKey::NestedTensorCUDA});
    return std::any_of(backends.begin(), backends.end(),
                       [&](DispatchKey key) { return op.hasKernelForDispatchKey(key); });
  }

  void add(const c10::OperatorHandle& op) {
    auto kernel = std::make_unique<Boxed>(op);
    Boxed* known = kernels_[op.operator_name()] = kernel.get();
    // A plan may know it, also where the op is gone.
    static auto* kept = new std::vector<c10::KernelFunction>;
    kept->push_back(c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel)));
    MakeUnboxed* unboxed = known->beneath().is_here() ? nullptr : unboxed_kernel_of(op.operator_name());
    handles_.emplace(op.operator_name(),
                     c10::Dispatcher::singleton().registerImpl(
                         op.operator_name(), DispatchKey::BackendSelect,
                         unboxed ? unboxed(op, *known, kept->back()) : kept->back(), std::nullopt, nullptr, "tidelog"));
  }

  static constexpr size_t ARGUMENTS_MAX = 64;  // `Kernel` has a bit for each

  std::mutex mutex_;
  std::vector<c10::OperatorName> due_;
  std::atomic<bool> are_due_{false};
  std::unordered_map<c10::OperatorName, Boxed*> kernels_;
  std::unordered_map<c10::OperatorName, c10::RegistrationHandleRAII> handles_;
};

}  // namespace tidelog
