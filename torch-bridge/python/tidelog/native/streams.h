// Order of memory's uses by ops and moves: streams and events, as torch's guards have them for every kind of device, so
// that one module serves every build of torch.
//
// A kernel runs long after the op that launched it has returned. So a transfer gets an event behind everything that was
// launched before: an eviction must not read what is still being written, and a fetch must not overwrite what is still
// being read (the allocator hands out memory whose last kernel has not run yet). What an eviction writes out may be
// read earlier, behind the last op that is known to have used it (`UseMarks`): the library compares it with the memory
// behind everything, before that goes. When a storage is settled its bytes
// are there for whatever is launched next, on any stream: in memory, or on their way, behind an event that every stream
// waits for. A stream waits when the storage is settled, or at the first op that is launched on it. What is not
// launched by an op that is seen waits on the host.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "device_arena.h"
#include "python.h"
#include "use_marks.h"

namespace tidelog {

// Streams of the host's memory: there are none, as an op that has returned is done. All is called with Python's lock
// held.
class Streams {
 public:
  Streams() = default;
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  virtual ~Streams() = default;

  virtual bool are_a_devices() const { return false; }
  // An op is about to be launched on the current stream. `is_known`: what it uses is noted with the returned number;
  // otherwise it may use any storage. `none_runs`: no other op is under way that has launched only a part yet.
  virtual Use launches(bool, bool) { return {}; }
  // Returns whether a stream has appeared beside others since this was asked last.
  virtual bool have_grown() { return false; }
  // An event behind everything that was launched. Null: it is all done.
  virtual EventPtr after() { return nullptr; }
  // An event behind the ops that may have used a storage, where that is earlier. Null: it is not.
  virtual EventPtr after_last(const LastUses&) { return nullptr; }
  // Frees a block of an arena's behind an event and the ops that may have used it. `event` may be null.
  virtual void free_behind(c10::DataPtr, EventPtr, const LastUses&) {}
  // Makes uses of a fetched storage wait for an event. `cause`: for which streams wait then.
  virtual void fetched(EventPtr, uint32_t = TIDE_TIME_COPIES_IN) {}
  // Notes that a copy of what stays reads memory until an event.
  virtual void reads(EventPtr) {}
  // All bytes that are on their way are there when this returns, and none is read: something may use them that is not
  // launched by an op.
  virtual void await_copies() {}
  // Forgets copies in a child of a fork: they are its parent's.
  virtual void forget_copies() {}
  // Shares memory with all streams, as it has its bytes again, or goes.
  virtual void share(const c10::DataPtr&) const {}

  // The number of the current stream, for `call_on`.
  virtual int64_t current() { return 0; }
  // Calls a function of Python's while that stream is the current one. What is launched here afterwards waits for it.
  virtual void call_on(int64_t, PyObject* function) { checked(PyObject_CallNoArgs(function)); }
  // Makes the current stream wait for all that was launched on others.
  virtual void await_others() {}

  // An op of a step that is being profiled is about to be launched.
  virtual void op_begins(int64_t) {}
  // Records that the op's kernels were enqueued.
  virtual void op_ran() {}
  // The nanoseconds that each op took. Empty where the session's own clock is right.
  virtual std::vector<int64_t> durations() { return {}; }

  // Times the step that begins now, until `clock_ends`, by the device's clock.
  virtual void clock_begins() {}
  virtual void clock_ends() {}
  // The spans of the last step that was timed: `StepClock::spans`.
  virtual std::string clock_spans() { return {}; }

  virtual size_t count() const { return 0; }
  // Returns the number of ended fetches whose bytes may be on their way.
  virtual size_t copies() const { return 0; }

  bool is_blind = true;  // ops were launched that nobody looked at: on which streams is not known
};

// Streams of a device. Torch's guard of its kind has the streams and events.
class DeviceStreams final : public Streams {
 public:
  explicit DeviceStreams(c10::Device device) : device_(device), guard_(device.type()) {}

  bool are_a_devices() const override { return true; }

  Use launches(bool is_known, bool none_runs) override {
    size_t place = noticed();
    return {place, marks_[place].launches(known_[place], is_known, none_runs)};
  }

  bool have_grown() override { return std::exchange(have_grown_, false); }

  EventPtr after() override {
    noticed();
    if (is_blind) {
      WithoutGil unlocked;
      guard_.synchronizeDevice(device_.index());
    }
    is_blind = false;
    std::vector<EventPtr> events;
    for (const c10::Stream& stream : known_) events.push_back(event_on(stream));
    return behind(events);
  }

  // Ops that nobody looked at are known only to who waits for all.
  EventPtr after_last(const LastUses& uses) override {
    if (is_blind || uses.empty()) return nullptr;
    std::vector<EventPtr> events;
    for (size_t place = 0; place < known_.size(); ++place) {
      uint64_t op = marks_[place].last_unknown();
      for (const Use& each : uses)
        if (each.stream == place) op = std::max(op, each.op);
      if (op == 0) continue;
      EventPtr event = marks_[place].behind(op);
      events.push_back(event ? std::move(event) : event_on(known_[place]));
    }
    return behind(events);
  }

  // Frees memory behind all that was launched where there is neither an event that has not happened nor are the ops
  // known.
  void free_behind(c10::DataPtr memory, EventPtr event, const LastUses& uses) override {
    std::vector<EventPtr> events;
    if (event && !event->query()) events.push_back(std::move(event));
    if (EventPtr last = after_last(uses)) events.push_back(std::move(last));
    if (EventPtr all = behind(events)) DeviceArena::free_behind(std::move(memory), *all, known_);
  }

  void fetched(EventPtr event, uint32_t cause) override {
    if (event->query()) return;
    StepClock::Marked marked(cause);
    copies_.push_back(event);
    for (const c10::Stream& stream : std::vector(known_)) event->block(stream);
    // They happen nearly in this order: what has happened behind one that is late stays, and holds nobody up.
    auto late = std::find_if(copies_.begin(), copies_.end(), [](const EventPtr& each) { return !each->query(); });
    copies_.erase(copies_.begin(), late);
  }

  void reads(EventPtr event) override {
    reads_.erase(std::remove_if(reads_.begin(), reads_.end(), [](const EventPtr& each) { return each->query(); }),
                 reads_.end());
    reads_.push_back(std::move(event));
  }

  void await_copies() override {
    for (const EventPtr& event : std::exchange(reads_, {})) {
      WithoutGil unlocked;
      event->synchronize();
    }
    for (const EventPtr& event : std::vector(copies_)) {
      {
        WithoutGil unlocked;
        event->synchronize();
      }
      copies_.erase(std::remove(copies_.begin(), copies_.end(), event), copies_.end());
    }
  }

  void forget_copies() override {
    StepClock::it().forget_in_child();
    OpClock::it().forget_in_child();
    new std::vector(std::exchange(reads_, {}));
    new std::vector(std::exchange(copies_, {}));  // never destroyed: the events are the parent's, too
  }

  // The allocator gives the memory to nobody before the kernels that were launched on every stream have run.
  void share(const c10::DataPtr& memory) const override {
    if (known_.size() <= 1) return;
    for (const c10::Stream& stream : known_) {
      DeviceArena::use(memory.get(), handle_of(stream));
      guard_.recordDataPtrOnStream(memory, stream);
    }
  }

  int64_t current() override { return static_cast<int64_t>(noticed()); }

  void call_on(int64_t place, PyObject* function) override {
    c10::Stream here = guard_.getStream(device_), there = known_.at(static_cast<size_t>(place));
    {
      c10::StreamGuard guard(there);
      Streams::call_on(place, function);
    }
    if (here != there) event_on(there)->block(here);
  }

  void await_others() override {
    c10::Stream here = guard_.getStream(device_);
    if (EventPtr event = after(); known_.size() > 1) event->block(here);
  }

  void op_begins(int64_t index) override { OpClock::it().begin(static_cast<size_t>(index), device_); }

  void op_ran() override { OpClock::it().end(); }

  std::vector<int64_t> durations() override {
    WithoutGil unlocked;
    guard_.synchronizeDevice(device_.index());
    return OpClock::it().durations();
  }

  void clock_begins() override { StepClock::it().begin(device_); }
  void clock_ends() override { StepClock::it().end(); }
  std::string clock_spans() override {
    WithoutGil unlocked;
    return StepClock::it().spans();
  }

  size_t count() const override { return known_.size(); }
  size_t copies() const override { return copies_.size(); }

 private:
  // The place of the current stream among those that are known.
  size_t noticed() {
    c10::Stream current = guard_.getStream(device_);
    auto found = std::find(known_.begin(), known_.end(), current);
    if (found != known_.end()) return found - known_.begin();
    known_.push_back(current);
    marks_.emplace_back();
    have_grown_ = known_.size() > 1;
    for (const EventPtr& copy : std::vector(copies_)) copy->block(current);
    return known_.size() - 1;
  }

  // One event behind all of these, made where no kernel is held up by it. Null: there are none.
  EventPtr behind(const std::vector<EventPtr>& events) {
    if (events.size() <= 1) return events.empty() ? nullptr : events[0];
    if (!joining_) joining_ = guard_.getStreamFromGlobalPool(device_);
    for (const EventPtr& event : events) event->block(*joining_);
    return event_on(*joining_);
  }

  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  std::vector<c10::Stream> known_;  // every stream that an op was launched on
  std::vector<UseMarks> marks_;  // of each of them
  bool have_grown_ = false;
  std::optional<c10::Stream> joining_;
  std::vector<EventPtr> reads_;  // behind copies of what stays
  std::vector<EventPtr> copies_;  // in the order in which they were asked for
};

}  // namespace tidelog
