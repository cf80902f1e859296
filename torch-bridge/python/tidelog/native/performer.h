// Callbacks of a session while one of its functions runs. What is usual is done here, for the memory of any device; the
// rest is left to Python (`_requests.py`, `_parts.py`) from its beginning.
//
// A callback that fails leaves its error to Python and ends the function, whose caller raises it. The session asks for
// the same again with the next call.
#pragma once

#include "ledger.h"

namespace tidelog {

constexpr int32_t WAIT_MS = 50;  // short, so that Ctrl-C is heard
constexpr int64_t TOLD_EVERY = 1 << 20;  // the heap hears of so many bytes at once

// Requests that were not done in Python.
std::atomic<int64_t> performed{0};

// All is called with Python's lock held.
class Performer {
 public:
  // `requests` and `parts` do what is not usual, `allocated` hears of memory, and `wait_ms` says how long to wait until
  // ops are looked at that have returned and use storages still. 0: waiting for them does not help.
  Performer(Ledger& ledger, PyObject* requests, PyObject* parts, PyObject* allocated, PyObject* wait_ms)
      : ledger_(ledger),
        requests_(borrowed(requests)),
        parts_(borrowed(parts)),
        allocated_(borrowed(allocated)),
        wait_ms_(borrowed(wait_ms)) {}
  Performer(const Performer&) = delete;
  Performer& operator=(const Performer&) = delete;

  // Has the session call back, as long as what is returned lives.
  static PyObject* connected(PyObject* session, std::unique_ptr<Performer> made, PyObject* async_uses) {
    Held owner = checked(PyCapsule_New(made.get(), nullptr, [](PyObject* capsule) {
      delete static_cast<Performer*>(PyCapsule_GetPointer(capsule, nullptr));
    }));
    Performer& it = *made.release();
    SessionCalls calls(session);
    it.ledger_.connect(calls, async_uses);
    tide_session_callbacks callbacks = it.callbacks();
    calls.require(calls.set_callbacks(calls.handle, &callbacks));
    return owner.release();
  }

 private:
  using Bytes = const tide_bytes*;

  tide_session_callbacks callbacks() {
    tide_session_callbacks made{};
    made.size = sizeof made;
    made.context = this;
    made.evict = [](void* context, Bytes bytes, tide_memory* memory) {
      return run(context, [&](Performer& it) {
        return it.perform(*bytes, names().evict, bytes->length, memory, &Performer::evict);
      });
    };
    made.release = [](void* context, Bytes bytes) {
      return run(context, [&](Performer& it) {
        return it.perform(*bytes, names().release, bytes->length, nullptr, &Performer::release);
      });
    };
    made.allocate = [](void* context, Bytes bytes, tide_memory* memory) {
      return run(context, [&](Performer& it) {
        return it.perform(*bytes, names().allocate, bytes->length, memory, &Performer::allocate);
      });
    };
    made.settle = [](void* context, Bytes bytes, uint64_t state) {
      return run(context,
                 [&](Performer& it) { return it.perform(*bytes, names().settle, state, nullptr, &Performer::settle); });
    };
    made.wait_begins = [](void* context) {
      int32_t milliseconds = run(context, [](Performer& it) { return it.about_to_wait(); });
      if (milliseconds >= 0) static_cast<Performer*>(context)->waiting_ = PyEval_SaveThread();
      return milliseconds;
    };
    made.wait_ends = [](void* context) {
      PyEval_RestoreThread(std::exchange(static_cast<Performer*>(context)->waiting_, nullptr));
      return run(context, [](Performer&) {
        checked(PyErr_CheckSignals());
        return TIDE_READY;
      });
    };
    return made;
  }

  // Scope of a callback: ops that begin meanwhile are inside.
  class Performing {
   public:
    explicit Performing(Ledger& ledger) : ledger_(ledger), outer_(std::exchange(ledger.is_performing, true)) {}
    Performing(const Performing&) = delete;
    Performing& operator=(const Performing&) = delete;
    ~Performing() { ledger_.is_performing = outer_; }

   private:
    Ledger& ledger_;
    const bool outer_;
  };

  // Runs what may throw, as a callback, and sends what the session has not heard of.
  template <class Function>
  static int32_t run(void* context, const Function& function) {
    HANDLE_TH_ERRORS
    Whole whole;
    auto& it = *static_cast<Performer*>(context);
    Performing performing(it.ledger_);
    int32_t answer = function(it);
    it.ledger_.flush();
    return answer;
    END_HANDLE_TH_ERRORS_RET(TIDE_INTERRUPTED)
  }

  // Usual handling of a request: `number` is the bytes or the state. Returns whether it is.
  using Usual = bool (Performer::*)(Record& record, uint64_t number, uint64_t& address);

  int32_t perform(const tide_bytes& bytes, PyObject* method, uint64_t number, tide_memory* memory, Usual usual) {
    RecordPtr record = ledger_.record_at(bytes.storage);
    c10::Storage storage = record ? record->storage() : c10::Storage();
    if (storage) {
      uint64_t address = 0;
      if (may_be_usual(bytes, *record) && (this->*usual)(*record, number, address)) {
        ++performed;
      } else {
        if (memory != nullptr) record->event = nullptr;  // of when it was asked for before
        address = in_python(bytes, method, *record, storage, number);
      }
      if (memory != nullptr && address != 0) pass(bytes, *record, storage, address, *memory);
    } else if (record && memory == nullptr) {
      ledger_.end_dead(*record);
    }
    return TIDE_READY;
  }

  static bool may_be_usual(const tide_bytes& bytes, const Record& record) {
    return bytes.is_part == 0 && !Ledger::has_update(*record.impl);
  }

  // Returns the address, where one is asked for.
  uint64_t in_python(const tide_bytes& bytes, PyObject* method, Record& record, const c10::Storage& storage,
                     uint64_t number) const {
    Held begin = to_python(bytes.begin);
    // The last argument is of parts alone.
    Held address = call(requests_of(bytes), method, to_python(record).get(), to_python(storage).get(),
                        to_python(number).get(), bytes.is_part != 0 ? begin.get() : nullptr);
    return PyLong_Check(address.get()) ? static_cast<uint64_t>(number_in(address.get())) : 0;
  }

  // Has the library use this memory, once everything that was launched has run.
  void pass(const tide_bytes& bytes, Record& record, const c10::Storage& storage, uint64_t address,
            tide_memory& memory) const {
    memory.address = address;
    if (bytes.is_part != 0) {
      Held after = call(parts_.get(), names().after, to_python(record).get(), to_python(storage).get(),
                        to_python(bytes.begin).get());
      memory.after = reinterpret_cast<void*>(number_in(after.get()));
      return;
    }
    bool is_coming = (record.state & COMING) != 0;
    // What has left and is as large has an event of its own, behind which its memory may be written.
    memory.after = is_coming && record.event ? record.event->eventId() : ledger_.after(record);
    // From the end of a transfer on the event is behind the copies, no longer before them.
    if (is_coming || !ledger_.maps_memory) memory.landed = memory.after;
    if (!is_coming) memory.last_use = ledger_.after_last(record);
  }

  PyObject* requests_of(const tide_bytes& bytes) const { return bytes.is_part != 0 ? parts_.get() : requests_.get(); }

  int32_t about_to_wait() const {
    if (!ledger_.has_async_uses()) return WAIT_MS;
    return static_cast<int32_t>(number_in(checked(PyObject_CallNoArgs(wait_ms_.get())).get()));
  }

  // -- what is usual ---------------------------------------------------------------------------------

  bool evict(Record& record, uint64_t size, uint64_t& address) {
    uint8_t before = record.state;
    // First the mark, then the look: another thread borrows what it uses, or pins it, before it looks for the mark.
    ledger_.mark(record, LEAVING);
    c10::StorageImpl& storage = *record.impl;
    if (!ledger_.movable(storage) || record.loans != 0 || record.pins != 0 || storage.nbytes() != size) {
      ledger_.mark(record, before);
      return false;
    }
    ledger_.begin_flight(record);
    address = reinterpret_cast<uint64_t>(storage.mutable_data());
    return true;
  }

  bool release(Record& record, uint64_t, uint64_t&) {
    if (!record.in_flight) return true;
    if (ledger_.maps_memory) return false;
    if ((record.state & COMING) != 0) ledger_.order(record);  // it is not wanted any more
    ledger_.mark(record, OUT);
    if (record.loans != 0) return false;
    ledger_.take(record, record.guard());
    Records::ends(record);
    return true;
  }

  bool allocate(Record& record, uint64_t size, uint64_t& address) {
    if (ledger_.maps_memory) return false;
    if ((record.state & COMING) != 0 && record.in_flight) {  // it is asked for again
      address = reinterpret_cast<uint64_t>(Records::memory_of(*record.impl).get());
      return true;
    }
    StepClock::Allocating allocating;
    try {
      address = ledger_.give(record, size, record.guard());
    } catch (const c10::OutOfMemoryError&) {
      return false;  // what is kept for later makes way first
    }
    // Parts of it can be given back from here on.
    if (ledger_.divides_from != 0 && size >= ledger_.divides_from &&
        DeviceArena::has(Records::owned_memory_of(*record.impl)))
      ledger_.calls().require(ledger_.calls().divisible(ledger_.calls().handle, static_cast<uint32_t>(record.number)));
    ledger_.mark(record, COMING);
    ledger_.begin_flight(record);
    untold_ += static_cast<int64_t>(size);
    if (untold_ >= TOLD_EVERY)
      checked(PyObject_CallOneArg(allocated_.get(), to_python(std::exchange(untold_, 0)).get()));
    return true;
  }

  bool settle(Record& record, uint64_t state, uint64_t&) {
    ledger_.order(record);
    if (record.is_away()) Guard::lift(*record.impl);
    ledger_.share(*record.impl);  // also where it stayed: torch may have told its allocator of a stream meanwhile
    ledger_.mark(record, state == TIDE_PARTS_COPIED ? CLEAN : SETTLED);
    ledger_.ends(record);
    return true;
  }

  Ledger& ledger_;
  const Held requests_, parts_, allocated_, wait_ms_;
  PyThreadState* waiting_ = nullptr;  // of the thread that has given up Python's lock
  int64_t untold_ = 0;  // bytes that the heap has not heard of
};

}  // namespace tidelog
