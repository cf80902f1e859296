// Times of a profiled step's ops on a device: what their kernels take.
//
// Events with times are recorded around each op. What the op's stream does not do for it in between is left out: it
// waits for a copy that has the memory of a result, or is idle while the thread allocates that. A plan hides copies
// behind kernels, and must not take waits for copies for kernels.
//
// All may be called by any thread, with Python's lock or without it.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace tidelog {

class OpClock {
 public:
  // The one of this process: a step of one block runs at a time.
  static OpClock& it() {
    static auto* it = new OpClock;  // never destroyed: its events are a GPU's
    return *it;
  }

  // The op with this index begins, on the current stream. Those behind it are forgotten.
  void begin(size_t index, c10::Device device) {
    std::lock_guard lock(mutex_);
    guard_.emplace(device.type());
    device_ = device;
    stream_ = guard_->getStream(device);
    if (index < ops_.size()) ops_.erase(ops_.begin() + static_cast<std::ptrdiff_t>(index), ops_.end());
    ops_.emplace_back();
    begin_part();
    runs_ = true;
  }

  // The op's kernels were enqueued.
  void end() {
    std::lock_guard lock(mutex_);
    if (ops_.empty()) return;
    end_part();
    ops_.back().ran = true;
    runs_ = false;
  }

  // Stops the op's time: its stream does something else from here on.
  void stop() {
    if (!runs_.load(std::memory_order_relaxed)) return;
    std::lock_guard lock(mutex_);
    if (is_its_stream()) end_part();
  }

  // Goes on with the op. Never throws: destructors call it.
  void go_on() noexcept {
    if (!runs_.load(std::memory_order_relaxed)) return;
    std::lock_guard lock(mutex_);
    try {
      if (is_its_stream()) begin_part();
    } catch (...) {  // the GPU has failed: the next op says so
      runs_ = false;
    }
  }

  // The nanoseconds that each op took, 0 for one that has not run. All has happened on the device.
  std::vector<int64_t> durations() {
    std::lock_guard lock(mutex_);
    runs_ = false;
    std::vector<int64_t> nanoseconds;
    for (const Op& op : std::exchange(ops_, {})) {
      double milliseconds = 0;
      for (const Part& part : op.parts)
        if (op.ran && part.end) milliseconds += part.begin->elapsedTime(*part.end);
      nanoseconds.push_back(static_cast<int64_t>(milliseconds * 1e6));
    }
    return nanoseconds;
  }

  // Forgets all in a child of a fork: events are its parent's.
  void forget_in_child() {
    new std::vector(std::exchange(ops_, {}));  // never destroyed
    runs_ = false;
  }

 private:
  struct Part {
    std::optional<c10::Event> begin, end;
  };

  struct Op {
    std::vector<Part> parts;
    bool ran = false;
  };

  bool is_its_stream() const { return runs_ && guard_->getStream(device_) == *stream_; }

  void begin_part() {
    Part& part = ops_.back().parts.emplace_back();
    record(part.begin);
  }

  void end_part() {
    Part& part = ops_.back().parts.back();
    if (!part.end) record(part.end);
  }

  void record(std::optional<c10::Event>& event) {
    event.emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    event->record(*stream_);
  }

  std::mutex mutex_;
  std::atomic<bool> runs_{false};
  std::optional<c10::impl::VirtualGuardImpl> guard_;
  c10::Device device_{c10::DeviceType::CPU};
  std::optional<c10::Stream> stream_;
  std::vector<Op> ops_;
};

}  // namespace tidelog
