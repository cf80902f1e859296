// In what order ops and moves use memory: streams and events, as torch's guards have them for every kind of device, so
// that one module serves every build of torch.
//
// A kernel runs long after the op that launched it has returned. So a transfer gets an event behind everything that was
// launched before: an eviction must not read what is still being written, and a fetch must not overwrite what is still
// being read (the allocator hands out memory whose last kernel has not run yet). When a storage is settled its bytes
// are there for whatever is launched next, on any stream: in memory, or on their way, behind an event that every stream
// waits for. A stream waits when the storage is settled, or at the first op that is launched on it. What is not
// launched by an op that is seen waits on the host.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "python.h"

namespace tidelog {

using EventPtr = std::shared_ptr<c10::Event>;

// Those of the host's memory: there are none, as an op that has returned is done. All is called with Python's lock
// held.
class Streams {
 public:
  Streams() = default;
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  virtual ~Streams() = default;

  // Whether a storage must live as long as a device may touch its memory: streams are told by the storage.
  virtual bool keep_storages() const { return false; }
  // An op is about to be launched on the current stream.
  virtual void notice() {}
  // Whether one has appeared beside others since this was asked last.
  virtual bool have_grown() { return false; }
  // An event behind everything that was launched. Null: it is all done.
  virtual EventPtr after() { return nullptr; }
  // From here on a storage may be used, by what is launched, once this has happened.
  virtual void fetched(EventPtr) {}
  // All bytes that are on their way are there when this returns: something may use them that is not launched by an op.
  virtual void await_copies() {}
  // In a child of a fork: they are its parent's.
  virtual void forget_copies() {}
  // This memory has its bytes again, or goes: that concerns every stream.
  virtual void share(const c10::DataPtr&) const {}

  // An op of a step that is being profiled is about to be launched.
  virtual void op_begins(int64_t) {}
  // It was launched.
  virtual void op_ran() {}
  // The nanoseconds that each op took. Empty where the session's own clock is right.
  virtual std::vector<int64_t> durations() { return {}; }

  virtual size_t count() const { return 0; }
  // How many fetches have ended whose bytes may be on their way.
  virtual size_t copies() const { return 0; }

  bool is_blind = true;  // ops were launched that nobody looked at: on which streams is not known
};

// Those of a device. Torch's guard of its kind has the streams and events.
class DeviceStreams final : public Streams {
 public:
  explicit DeviceStreams(c10::Device device) : device_(device), guard_(device.type()) {}

  bool keep_storages() const override { return true; }

  void notice() override {
    c10::Stream current = guard_.getStream(device_);
    if (std::find(known_.begin(), known_.end(), current) != known_.end()) return;
    known_.push_back(current);
    have_grown_ = known_.size() > 1;
    for (const EventPtr& copy : std::vector(copies_)) copy->block(current);
  }

  bool have_grown() override { return std::exchange(have_grown_, false); }

  EventPtr after() override {
    notice();
    if (is_blind) {
      WithoutGil unlocked;
      guard_.synchronizeDevice(device_.index());
    }
    is_blind = false;
    if (known_.size() == 1) return recorded_on(known_[0]);
    // One event behind all of them, made where no kernel is held up by it.
    if (!joining_) joining_ = guard_.getStreamFromGlobalPool(device_);
    for (const c10::Stream& stream : known_) recorded_on(stream)->block(*joining_);
    return recorded_on(*joining_);
  }

  void fetched(EventPtr event) override {
    if (event->query()) return;
    copies_.push_back(event);
    for (const c10::Stream& stream : std::vector(known_)) event->block(stream);
    // They happen nearly in this order: what has happened behind one that is late stays, and holds nobody up.
    auto late = std::find_if(copies_.begin(), copies_.end(), [](const EventPtr& each) { return !each->query(); });
    copies_.erase(copies_.begin(), late);
  }

  void await_copies() override {
    for (const EventPtr& event : std::vector(copies_)) {
      {
        WithoutGil unlocked;
        event->synchronize();
      }
      copies_.erase(std::remove(copies_.begin(), copies_.end(), event), copies_.end());
    }
  }

  void forget_copies() override {
    new std::vector(std::exchange(copies_, {}));  // never destroyed: the events are the parent's, too
  }

  // The allocator gives the memory to nobody before the kernels that were launched on every stream have run.
  void share(const c10::DataPtr& memory) const override {
    if (known_.size() > 1)
      for (const c10::Stream& stream : known_) guard_.recordDataPtrOnStream(memory, stream);
  }

  void op_begins(int64_t index) override {
    if (static_cast<size_t>(index) < timed_.size()) timed_.erase(timed_.begin() + index, timed_.end());
    timed_.emplace_back(device_.type());
    timed_.back().begin.record(guard_.getStream(device_));
  }

  void op_ran() override {
    if (timed_.empty()) return;
    timed_.back().end.record(guard_.getStream(device_));
    timed_.back().ran = true;
  }

  std::vector<int64_t> durations() override {
    std::vector<Timed> timed = std::exchange(timed_, {});
    {
      WithoutGil unlocked;
      guard_.synchronizeDevice(device_.index());
    }
    std::vector<int64_t> nanoseconds;
    for (const Timed& each : timed)
      nanoseconds.push_back(each.ran ? static_cast<int64_t>(each.begin.elapsedTime(each.end) * 1e6) : 0);
    return nanoseconds;
  }

  size_t count() const override { return known_.size(); }
  size_t copies() const override { return copies_.size(); }

 private:
  struct Timed {
    explicit Timed(c10::DeviceType type)
        : begin(type, c10::EventFlag::BACKEND_DEFAULT), end(type, c10::EventFlag::BACKEND_DEFAULT) {}
    c10::Event begin, end;
    bool ran = false;
  };

  EventPtr recorded_on(const c10::Stream& stream) const {
    auto event = std::make_shared<c10::Event>(device_.type());
    event->record(stream);
    return event;
  }

  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  std::vector<c10::Stream> known_;  // every stream that an op was launched on
  bool have_grown_ = false;
  std::optional<c10::Stream> joining_;
  std::vector<EventPtr> copies_;  // in the order in which they were asked for
  std::vector<Timed> timed_;
};

}  // namespace tidelog
