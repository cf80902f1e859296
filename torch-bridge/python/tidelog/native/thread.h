// Threads and the open block. Its own thread's are its ops. So are those of threads that work for it: torch carries
// what it keeps for each thread to those that run a backward pass, and to tasks of scripts.
#pragma once

#include <ATen/ThreadLocalPythonObjects.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>
#include <torch/csrc/PyInterpreter.h>

#include <atomic>
#include <memory>

#include "python.h"

namespace tidelog {

using c10::DispatchKey;
using c10::DispatchKeySet;

// Kernels of this module are at the key `BackendSelect`: below autograd and all that takes ops apart, above what
// computes. Every thread of torch's meets that key.
const DispatchKeySet BELOW(DispatchKeySet::FULL_AFTER, DispatchKey::BackendSelect);
const DispatchKeySet ABOVE =
    DispatchKeySet(DispatchKeySet::FULL) - (BELOW | DispatchKeySet(DispatchKey::BackendSelect));

// Place of a thread: between two ops, inside one, or in a finalizer of the program that runs inside one.
enum class Where : uint8_t { between, inside, in_finalizer };

// A key that is excluded inside an op, where no tensor has it. So what an op starts on other threads is inside the op,
// too: gloo copies what a collective has received on threads that have the state of the caller's. It is below those of
// torch's modes and subclasses, which exclude all keys above their own for what they run.
constexpr DispatchKey INSIDE = DispatchKey::CustomRNGKeyId;

inline thread_local bool in_finalizer = false;
inline thread_local bool works_for_block = false;  // besides those that `Workers` knows

inline Where where() {
  if (!c10::impl::tls_is_dispatch_key_excluded(INSIDE)) return Where::between;
  return in_finalizer ? Where::in_finalizer : Where::inside;
}

inline void move_to(Where now) {
  c10::impl::tls_set_dispatch_key_excluded(INSIDE, now != Where::between);
  in_finalizer = now == Where::in_finalizer;
}

// Scope in which this thread is at another place.
class At {
 public:
  explicit At(Where now) : before_(where()) { move_to(now); }
  At(const At&) = delete;
  At& operator=(const At&) = delete;
  ~At() { move_to(before_); }

 private:
  const Where before_;
};

// State of the open block, and the threads that work for it. For looks without Python's lock.
class Workers {
 public:
  // A block begins in this thread.
  static void begin() {
    // Never null for torch, and nothing to Python.
    auto token = std::make_shared<c10::SafePyObject>(nullptr, getPyInterpreter());
    token_ = token.get();
    thread_ = pthread_self();
    at::impl::ThreadLocalPythonObjects::set(name(), std::move(token));  // stays there until the next block begins
    is_open_ = true;
  }

  static void end() { is_open_ = false; }

  // The block's ops are nobody's meanwhile.
  static void suspend(bool on) { is_open_ = !on; }

  static bool is_open() { return is_open_.load(std::memory_order_relaxed); }

  static bool have_this_thread() {
    if (pthread_equal(thread_.load(std::memory_order_relaxed), pthread_self()) || works_for_block) return true;
    using Objects = at::impl::ThreadLocalPythonObjects;
    return Objects::contains(name()) && Objects::get(name()).get() == token_.load(std::memory_order_relaxed);
  }

 private:
  static const std::string& name() {
    static const auto* name = new std::string("tidelog");
    return *name;
  }

  static inline std::atomic<bool> is_open_{false};
  static inline std::atomic<pthread_t> thread_{};
  static inline std::atomic<const c10::SafePyObject*> token_{nullptr};
};

// An op that is under way, counted until it ends.
class UnderWay {
 public:
  UnderWay() = default;
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  ~UnderWay() { ends(); }
  void begins() {
    if (!std::exchange(counts_, true)) ++count, ++here;
  }
  void ends() {
    if (std::exchange(counts_, false)) --count, --here;
  }

  bool counts() const { return counts_; }

  static inline std::atomic<int> count{0};
  static inline thread_local int here = 0;  // of this thread's: an op ends where it has begun

 private:
  bool counts_ = false;
};

// An op that Python runs, counted until it ends.
class InPython {
 public:
  InPython() { ++count; }
  InPython(const InPython&) = delete;
  InPython& operator=(const InPython&) = delete;
  ~InPython() { --count; }

  static inline std::atomic<int> count{0};
};

// Returns whether no op is but this one: each may have launched only a part of what it does.
inline bool none_runs_beside(const UnderWay& own) {
  return UnderWay::count == (own.counts() ? 1 : 0) && InPython::count == 0;
}

// Observer of an op of this thread.
enum class Observer { nobody, block, block_inside, bystander };

inline Observer observer_of(DispatchKeySet keys) {
  if (!Workers::is_open()) return Observer::nobody;
  Where now = where();
  if (now == Where::inside) return Observer::nobody;
  // What has no bytes does not move. Kernels for fake tensors run so, too.
  if (keys.has_backend(c10::BackendComponent::MetaBit)) return Observer::nobody;
  if (Workers::have_this_thread()) return now == Where::between ? Observer::block : Observer::block_inside;
  // One that Python does not know computes a part of an op, and who has Python's lock may wait for it.
  return PyGILState_GetThisThreadState() != nullptr ? Observer::bystander : Observer::nobody;
}

}  // namespace tidelog
