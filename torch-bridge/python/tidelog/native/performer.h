// What a session asks for, done from here: what `Performer` in `_performer.py` does, where that is usual, for the
// memory of any device. It is done in the same order and by the same marks of the ledger, so that Python can go on from
// any request.
#pragma once

#include "types.h"

namespace tidelog {

// All is called with Python's lock held.
class Performer {
 public:
  Performer(Held performer, Ledger& ledger)
      : performer_(std::move(performer)),
        ledger_(ledger),
        heap_(attribute(performer_.get(), names()._heap)),
        async_uses_(attribute(attribute(performer_.get(), names()._async_uses).get(), names()._running)),
        async_uses_elsewhere_(attribute(attribute(performer_.get(), names()._async_uses).get(), names()._elsewhere)),
        in_cpp_(is_true(performer_.get(), names().in_cpp)) {}

  // What the session hears of a request that is done.
  struct Answer {
    uint64_t address = 0;  // of the storage's memory, where that was asked for
    void* after = nullptr;  // the event after which it may be touched; null: at once
    bool completes_by_event = false;  // a fetch that may end before its bytes are there: `after` is behind them then
  };

  // Does what is asked for. False: Python has to do it, from its beginning.
  bool perform(const tide_action& action, Answer& done) const {
    // While it waits without Python's lock, other threads must see that a request is being done.
    if (!in_cpp_ || ledger_.streams().must_synchronize()) return false;
    RecordPtr record = ledger_.record_at(action.storage);
    if (!record) return true;
    c10::Storage storage = record->storage();
    if (!storage) {  // its memory was in flight when it died
      if (action.kind == TIDE_RELEASE || action.kind == TIDE_SETTLE) Records::ends(*record);
      return true;
    }
    if (Ledger::has_update(*record->impl)) return false;
    if (!perform(*record, action, done.address)) return false;
    if (done.address == 0) return true;
    done.after = ledger_.after(*record);
    done.completes_by_event =
        action.kind == TIDE_ALLOCATE && done.after != nullptr && ledger_.streams().complete_by_event();
    return true;
  }

  // Whether ops that have returned use storages still: then only Python knows how to wait.
  bool has_async_uses() const { return size_of(async_uses_.get()) + size_of(async_uses_elsewhere_.get()) != 0; }

  // Goes on in Python, from a status that is not `TIDE_READY`.
  void drive(int32_t status) const { call(performer_.get(), names().drive, checked(PyLong_FromLong(status)).get()); }

 private:
  bool perform(Record& record, const tide_action& action, uint64_t& address) const {
    switch (action.kind) {
      case TIDE_EVICT:
        return evict(record, action.size, address);
      case TIDE_RELEASE:
        return release(record);
      case TIDE_ALLOCATE:
        return allocate(record, action.size, address);
      case TIDE_SETTLE:
        return settle(record, action.size != 0);
    }
    return false;
  }

  bool evict(Record& record, uint64_t size, uint64_t& address) const {
    uint8_t before = record.state;
    // First the mark, then the look: another thread borrows what it uses, or pins it, before it looks for the mark.
    ledger_.mark(record, LEAVING);
    c10::StorageImpl& storage = *record.impl;
    if (!ledger_.movable(storage) || record.loans != 0 || record.pins != 0 || storage.nbytes() != size) {
      ledger_.mark(record, before);
      return false;
    }
    Records::begins(record, ledger_.streams().keep_storages());
    address = reinterpret_cast<uint64_t>(storage.mutable_data());
    return true;
  }

  bool release(Record& record) const {
    if (!record.in_flight) return true;
    if (ledger_.maps_memory) return false;
    ledger_.order(record);  // what is coming, and is not wanted any more
    ledger_.mark(record, OUT);
    if (record.loans != 0) return false;
    ledger_.share(*record.impl);
    Records::take(*record.impl, types::message_of(record));
    Records::ends(record);
    return true;
  }

  bool allocate(Record& record, uint64_t size, uint64_t& address) const {
    if (ledger_.maps_memory) return false;
    try {
      address = Records::give(*record.impl, size, types::message_of(record));
    } catch (const c10::OutOfMemoryError&) {
      return false;  // what is kept for later makes way first
    }
    ledger_.mark(record, COMING);
    Records::begins(record, ledger_.streams().keep_storages());
    call(heap_.get(), names().allocated, checked(PyLong_FromUnsignedLongLong(size)).get());
    return true;
  }

  bool settle(Record& record, bool is_clean) const {
    if (record.is_away()) {
      ledger_.order(record);
      Guard::lift(*record.impl);
      ledger_.share(*record.impl);
    }
    ledger_.mark(record, is_clean ? CLEAN : SETTLED);
    Records::ends(record);
    return true;
  }

  const Held performer_;
  Ledger& ledger_;
  const Held heap_;
  const Held async_uses_, async_uses_elsewhere_;  // never replaced
  const bool in_cpp_;  // whether they are done here
};

}  // namespace tidelog
