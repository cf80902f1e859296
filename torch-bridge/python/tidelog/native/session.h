// The library's session, called from here: what `Session` in `_native.py` does, for the calls that come with each op.
#pragma once

#include <vector>

#include "performer.h"

namespace tidelog {

constexpr uint32_t WAIT_MS = 50;  // as in `_performer.py`

// Requests that were not done in Python.
std::atomic<int64_t> performed{0};

// All is called with Python's lock held.
class LibrarySession {
 public:
  LibrarySession(Held session, Ledger& ledger, Held performer)
      : session_(std::move(session)), ledger_(ledger), performer_(std::move(performer), ledger) {
    ledger.connect(SessionCalls(session_.get()));
  }

  bool has_async_uses() const { return performer_.has_async_uses(); }

  // Not in a child of a fork.
  bool is_usable() const { return !is_true(session_.get(), names().forked); }

  // Returns once the op's storages are in memory and its results have room.
  void begin_op(int64_t index, uint64_t fingerprint, const char* name, const std::vector<uint32_t>& uses,
                int64_t needs) const {
    ledger_.flush();
    drive(calls().op_begin(calls().handle, index, fingerprint, name, uses.data(), uses.size(), needs));
  }

  // Returns once the budget holds with the op's results.
  void end_op() const {
    ledger_.flush();
    drive(calls().op_end(calls().handle));
  }

  // Does what it asks for, as `Performer.perform`. False: what comes next is for Python.
  bool perform() const {
    if (!is_usable()) return false;
    for (;;) {
      ledger_.flush();
      tide_action action;
      int32_t status = calls().next_action(calls().handle, &action);
      calls().require(status);
      if (status != TIDE_ACTION) return true;
      Performer::Answer done;
      if (!performer_.perform(action, done)) return false;
      ++performed;
      ledger_.flush();
      calls().require(done.completes_by_event
                          ? calls().allocated(calls().handle, action.sequence, done.address, done.after, done.after)
                          : calls().action_done(calls().handle, action.sequence, done.address, done.after));
    }
  }

 private:
  const SessionCalls& calls() const { return ledger_.calls(); }

  // As `Performer.drive`.
  void drive(int32_t status) const {
    calls().require(status);
    while (status != TIDE_READY) {
      if (status == TIDE_ACTION ? !perform() : performer_.has_async_uses()) return performer_.drive(status);
      ledger_.flush();
      status = status == TIDE_ACTION ? calls().resume(calls().handle) : wait();
      calls().require(status);
    }
  }

  // Waits a while without Python's lock. Ctrl-C is heard after it.
  int32_t wait() const {
    int32_t status = [&] {
      WithoutGil unlocked;
      return calls().wait(calls().handle, WAIT_MS);
    }();
    checked(PyErr_CheckSignals());
    return status;
  }

  const Held session_;
  Ledger& ledger_;
  const Performer performer_;
};

}  // namespace tidelog
