// Clock of the program's stream in a step that is timed: when the GPU ran kernels, when it waited for a copy, and when
// nothing was launched that it could have begun.
//
// Events with times are recorded around each op and around each wait of the stream. What lies between two of them in
// the stream is known, and so is when the thread had put the second one there: a stream that got to it before was idle
// because of the thread. The GPU's times are laid on the thread's clock by the event that it got to soonest after it
// was recorded. An op that begins while the GPU is idle counts as launching until it returns.
//
// All may be called by any thread, with Python's lock or without it.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <tidelog.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "op_clock.h"

namespace tidelog {

class StepClock {
 public:
  // The one of this process: a step of one block runs at a time.
  static StepClock& it() {
    static auto* it = new StepClock;  // never destroyed: its events are a GPU's
    return *it;
  }

  // A step begins that is to be timed, on the current stream.
  void begin(c10::Device device) {
    std::lock_guard lock(mutex_);
    forget();
    guard_.emplace(device.type());
    device_ = device;
    stream_ = guard_->getStream(device);
    add(TIDE_TIME_NOT_LAUNCHED);
    is_on_ = true;
  }

  // The step ends. What its GPU did is known when that has got there: `spans`.
  void end() {
    std::lock_guard lock(mutex_);
    if (!is_on_) return;
    is_on_ = false;
    add(TIDE_TIME_NOT_LAUNCHED);
  }

  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }

  // Scope in which this is what the stream does; behind it that is again what it was. It is nothing of a profiled op.
  class Marked {
   public:
    explicit Marked(uint32_t cause) : is_op_(cause == TIDE_TIME_KERNELS) {
      if (!is_op_) OpClock::it().stop();
      if (it().is_on()) before_ = it().mark(cause);
    }
    Marked(const Marked&) = delete;
    Marked& operator=(const Marked&) = delete;
    ~Marked() {
      if (!is_op_) OpClock::it().go_on();
      if (before_) it().mark_if_it_works(*before_);
    }

   private:
    const bool is_op_;
    std::optional<uint32_t> before_;
  };

  // Scope in which the thread is in the allocator.
  class Allocating {
   public:
    Allocating() : began_(it().is_on() ? now() : 0) {}
    Allocating(const Allocating&) = delete;
    Allocating& operator=(const Allocating&) = delete;
    ~Allocating() {
      if (began_ != 0) it().allocated(began_, now());
    }

   private:
    const int64_t began_;
  };

  // The spans of the last step that was timed, as `tide_step_span` one behind the other, as soon as they are asked for.
  // The GPU has got to its end when this returns. Empty: there is none that was not asked for.
  std::string spans() {
    std::vector<Mark> marks;
    std::vector<Allocation> allocations;
    {
      std::lock_guard lock(mutex_);
      if (is_on()) return {};
      marks.swap(marks_), allocations.swap(allocations_);
    }
    if (marks.size() < 2) return {};
    std::vector<tide_step_span> found;
    try {
      marks.back().event.synchronize();
      found = told(marks, allocations);
    } catch (const c10::Error&) {
      found.clear();  // some were recorded in a graph, and have no times
    }
    return {reinterpret_cast<const char*>(found.data()), found.size() * sizeof(tide_step_span)};
  }

  // Times no step that has begun: the program does something else meanwhile, or a GPU has failed.
  void drop() {
    std::lock_guard lock(mutex_);
    forget();
  }

  // Forgets all in a child of a fork: events are its parent's.
  void forget_in_child() {
    new std::vector(std::exchange(marks_, {}));  // never destroyed
    is_on_ = false;
  }

 private:
  struct Mark {
    c10::Event event;
    int64_t at;      // when it was recorded, by the thread's clock
    uint32_t cause;  // what the stream does behind it
  };

  struct Allocation {
    int64_t begin, end;
  };

  static int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  }

  // Has this be what the stream does from here on; others than the step's are not timed. Returns what it did before.
  std::optional<uint32_t> mark(uint32_t cause) {
    std::lock_guard lock(mutex_);
    if (!is_on() || marks_.size() >= MARKS_MAX || guard_->getStream(device_) != *stream_) return std::nullopt;
    uint32_t before = marks_.back().cause;
    add(cause);
    return before;
  }

  void mark_if_it_works(uint32_t cause) {
    try {
      mark(cause);
    } catch (...) {  // the GPU has failed: the next op says so
      drop();
    }
  }

  void add(uint32_t cause) {
    c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    event.record(*stream_);
    marks_.push_back({std::move(event), now(), cause});
  }

  void allocated(int64_t begin, int64_t end) {
    std::lock_guard lock(mutex_);
    if (is_on() && end - begin >= ALLOCATION_MIN) allocations_.push_back({begin, end});
  }

  void forget() {
    is_on_ = false;
    marks_.clear();
    allocations_.clear();
  }

  // Makes the spans, by the thread's clock.
  static std::vector<tide_step_span> told(const std::vector<Mark>& marks, const std::vector<Allocation>& allocations) {
    std::vector<int64_t> at(marks.size());
    int64_t soonest = std::numeric_limits<int64_t>::max();
    for (size_t place = 0; place < marks.size(); ++place) {
      at[place] = place == 0 ? 0 : static_cast<int64_t>(marks[0].event.elapsedTime(marks[place].event) * 1e6);
      soonest = std::min(soonest, at[place] - marks[place].at);
    }
    for (int64_t& each : at) each -= soonest;
    std::vector<tide_step_span> spans;
    int64_t here = now();
    auto add = [&](int64_t begin, int64_t end, uint32_t cause, uint32_t clock) {
      auto ago = [&](int64_t time) { return static_cast<uint64_t>(std::max<int64_t>(here - time, 0)); };
      if (begin < end) spans.push_back({ago(begin), ago(end), cause, clock});
    };
    for (size_t place = 0; place + 1 < marks.size(); ++place) {
      int64_t begin = at[place], end = std::max(at[place + 1], begin);
      uint32_t cause = marks[place].cause;
      bool waits = cause == TIDE_TIME_COPIES_IN || cause == TIDE_TIME_COPIES_OUT;
      // What the GPU has passed before the thread was there waited for the thread.
      int64_t launched = std::clamp(marks[place + 1].at, begin, end);
      add(begin, launched, TIDE_TIME_NOT_LAUNCHED, TIDE_CLOCK_GPU);
      add(launched, end, waits ? cause : TIDE_TIME_KERNELS, TIDE_CLOCK_GPU);
    }
    for (const Allocation& each : allocations) add(each.begin, each.end, TIDE_TIME_ALLOCATOR, TIDE_CLOCK_THREAD);
    return spans;
  }

  static constexpr size_t MARKS_MAX = 1 << 17;  // of a step that does not end
  static constexpr int64_t ALLOCATION_MIN = 2'000;  // ns: what takes less is part of a launch

  std::mutex mutex_;
  std::atomic<bool> is_on_{false};
  std::optional<c10::impl::VirtualGuardImpl> guard_;
  c10::Device device_{c10::DeviceType::CPU};
  std::optional<c10::Stream> stream_;
  std::vector<Mark> marks_;
  std::vector<Allocation> allocations_;
};

}  // namespace tidelog
