// The library's session, called from here: what `Session` in `_native.py` does, for the calls that come with each op.
#pragma once

#include <vector>

#include "performer.h"

namespace tidelog {

// All is called with Python's lock held.
class LibrarySession {
 public:
  LibrarySession(Held session, Ledger& ledger, const Held& performer)
      : session_(std::move(session)), ledger_(ledger), async_uses_(performer.get()) {}

  bool has_async_uses() const { return async_uses_.exist(); }

  // Not in a child of a fork.
  bool is_usable() const { return !is_true(session_.get(), names().forked); }

  // Returns once the op's storages are in memory and its results have room.
  void begin_op(int64_t index, uint64_t fingerprint, const char* name, const std::vector<uint32_t>& uses,
                int64_t needs) const {
    ledger_.flush();
    const SessionCalls& calls = ledger_.calls();
    calls.require(calls.op_begin(calls.handle, index, fingerprint, name, uses.data(), uses.size(), needs));
  }

  // Returns once the budget holds with the op's results.
  void end_op() const {
    ledger_.flush();
    ledger_.calls().require(ledger_.calls().op_end(ledger_.calls().handle));
  }

 private:
  const Held session_;
  Ledger& ledger_;
  const AsyncUses async_uses_;
};

}  // namespace tidelog
