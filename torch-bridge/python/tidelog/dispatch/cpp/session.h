// The library's session, called from here: what `Session` in `_native.py` does, for the calls that come with each op.
#pragma once

#include <algorithm>
#include <vector>

#include "performer.h"
#include "unmet.h"

namespace tidelog {

constexpr int32_t READY = 0, ACTION = 1;            // `Status`
constexpr uint32_t WAIT_MS = 50;                    // as in `_performer.py`
constexpr uint32_t MODIFIES = 1u << 31;             // in a use: the op writes the storage
constexpr uint64_t OUTSIDE_A_STEP = 0xFFFFFFFFull;  // the op index of a birth that no step has seen

// `tide_birth`.
struct SessionBirth {
  uint64_t storage, size, place;
};

// All is called with Python's lock held.
class LibrarySession {
 public:
  LibrarySession(Held session, const Ledger& ledger, Held performer)
      : session_(std::move(session)),
        ledger_(ledger),
        performer_(std::move(performer), ledger),
        free_numbers_(attribute(ledger.get(), names()._free_ids)),
        pending_(call(ledger.get(), names().pending)) {
    Held calls = call(session_.get(), names().calls);
    auto each = [&](size_t place) { return PyLong_AsUnsignedLongLong(PyTuple_GetItem(calls.get(), place)); };
    handle_ = each(0);
    sync_ = reinterpret_cast<decltype(sync_)>(each(1));
    op_begin_ = reinterpret_cast<decltype(op_begin_)>(each(2));
    op_end_ = reinterpret_cast<decltype(op_end_)>(each(3));
    resume_ = reinterpret_cast<decltype(resume_)>(each(4));
    next_action_ = reinterpret_cast<decltype(next_action_)>(each(5));
    action_done_ = reinterpret_cast<decltype(action_done_)>(each(6));
    wait_ = reinterpret_cast<decltype(wait_)>(each(7));
    if (PyErr_Occurred()) throw_python_error();
  }

  bool has_async_uses() const { return performer_.has_async_uses(); }
  Py_ssize_t references_in_flight(const c10::StorageImpl& storage) const {
    return performer_.references_in_flight(storage);
  }

  // Not in a child of a fork.
  bool is_usable() const { return !is_true(session_.get(), names().forked); }

  // Sends what is pending, as `Session.flush`.
  void flush() const {
    bool has_pending = ledger_.has_births();
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(pending_.get()) && !has_pending; ++place)
      has_pending = PyList_GET_SIZE(PyTuple_GET_ITEM(pending_.get(), place)) != 0;
    if (has_pending)
      call(session_.get(), names().flush);  // which comes to `tell_unmet`
    else
      tell_unmet();
  }

  // Tells it of the storages that Python has not met, and of those of them that have died.
  void tell_unmet() const {
    if (!unmet().has_news()) return;
    std::vector<int64_t> numbers = take_numbers(unmet().untold());
    std::vector<uint32_t> dead = unmet().take_dead();
    std::vector<SessionBirth> births;
    births.reserve(numbers.size());
    unmet().number_all(numbers, [&](const Unmet& each) {
      uint64_t index = each.birth.index < 0 ? OUTSIDE_A_STEP : each.birth.index;
      births.push_back({static_cast<uint64_t>(each.number), static_cast<uint64_t>(each.size),
                        index << 16 | static_cast<uint64_t>(each.birth.slot)});
    });
    for (int64_t number : numbers) append(free_numbers_.get(), number);  // some have died meanwhile
    require(sync_(handle_, births.data(), births.size(), dead.data(), dead.size()));
    Held retired = attribute(ledger_.get(), names()._retired_ids);
    for (uint32_t number : dead) append(retired.get(), number);
  }

  // Returns once the op's storages are in memory and its results have room.
  void begin_op(int64_t index, uint64_t fingerprint, const char* name, const std::vector<uint32_t>& uses,
                int64_t needs) const {
    flush();
    drive(op_begin_(handle_, index, fingerprint, name, uses.data(), uses.size(), needs));
  }

  // Returns once the budget holds with the op's results.
  void end_op() const {
    flush();
    drive(op_end_(handle_));
  }

  // Does what it asks for, as `Performer.perform`. False: what comes next is for Python.
  bool perform() const {
    if (!is_usable()) return false;
    for (;;) {
      flush();
      Action action;
      int32_t status = next_action_(handle_, &action);
      require(status);
      if (status != ACTION) return true;
      uint64_t address;
      if (!performer_.perform(action, address)) return false;
      flush();
      require(action_done_(handle_, action.sequence, address, nullptr));
    }
  }

 private:
  std::vector<int64_t> take_numbers(size_t count) const {
    std::vector<int64_t> numbers;
    PyObject* list = free_numbers_.get();
    int64_t next = number(ledger_.get(), names()._next_id);
    Py_ssize_t free = PyList_GET_SIZE(list);
    Py_ssize_t taken = std::min(free, static_cast<Py_ssize_t>(count));
    for (size_t fresh = count - taken; fresh != 0; --fresh) numbers.push_back(next + fresh - 1);
    for (Py_ssize_t place = free - taken; place < free; ++place)
      numbers.push_back(number_in(PyList_GET_ITEM(list, place)));
    checked(PyList_SetSlice(list, free - taken, free, nullptr));
    if (count != static_cast<size_t>(taken)) set_number(ledger_.get(), names()._next_id, next + count - taken);
    return numbers;
  }

  static void append(PyObject* list, int64_t number) {
    checked(PyList_Append(list, checked(PyLong_FromLongLong(number)).get()));
  }

  void require(int32_t status) const {
    if (status < 0) call(session_.get(), names().refuse, checked(PyLong_FromLong(status)).get());
  }

  // As `Performer.drive`.
  void drive(int32_t status) const {
    require(status);
    while (status != READY) {
      if (status == ACTION ? !perform() : performer_.has_async_uses()) return performer_.drive(status);
      flush();
      status = status == ACTION ? resume_(handle_) : wait();
      require(status);
    }
  }

  // Waits a while without Python's lock. Ctrl-C is heard after it.
  int32_t wait() const {
    PyThreadState* thread = PyEval_SaveThread();
    int32_t status = wait_(handle_, WAIT_MS);
    PyEval_RestoreThread(thread);
    checked(PyErr_CheckSignals());
    return status;
  }

  const Held session_;
  const Ledger& ledger_;
  const Performer performer_;
  const Held free_numbers_;  // a list
  const Held pending_;       // lists of what the session has not heard of, beside births
  uint64_t handle_;
  int32_t (*sync_)(uint64_t, const SessionBirth*, size_t, const uint32_t*, size_t);
  int32_t (*op_begin_)(uint64_t, int64_t, uint64_t, const char*, const uint32_t*, size_t, uint64_t);
  int32_t (*op_end_)(uint64_t);
  int32_t (*resume_)(uint64_t);
  int32_t (*next_action_)(uint64_t, Action*);
  int32_t (*action_done_)(uint64_t, uint64_t, uint64_t, void*);
  int32_t (*wait_)(uint64_t, uint32_t);
};

}  // namespace tidelog
