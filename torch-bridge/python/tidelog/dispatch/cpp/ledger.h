// The ledger, read and changed from here: what `Ledger` in `_ledger.py` does, for what comes with each op and each
// move.
#pragma once

#include <structmember.h>

#include "python.h"

namespace tidelog {

// `_record.SETTLED` and the others.
constexpr int64_t SETTLED = 0, CLEAN = 1, LEAVING = 2, OUT = 4, COMING = 8, AWAY = OUT | COMING;

// What is looked at with each op: `Counters` in `_ledger.py`.
struct Counters {
  int64_t limit, counted, peak, marked;
  bool quiet, expects_buckets;
};

// Where in a step the program is: `Place` in `_steps.py`.
struct Place {
  int64_t next_op;
  bool follows, profiles;
};

// Where an object of Python's has such numbers, for as long as that lives.
template <class Numbers>
volatile Numbers* numbers_of(PyObject* object) {
  Py_buffer view;
  checked(PyObject_GetBuffer(object, &view, PyBUF_SIMPLE));
  void* numbers = view.len == sizeof(Numbers) ? view.buf : nullptr;
  PyBuffer_Release(&view);
  TORCH_CHECK(numbers != nullptr, "numbers of another layout");
  return static_cast<volatile Numbers*>(numbers);
}

// One of the `__slots__` of a type: its instances have it at a fixed place, which costs a fifth of an attribute.
class Slot {
 public:
  Slot(PyObject* type, PyObject* name) {
    Held member = attribute(type, name);
    TORCH_CHECK(Py_TYPE(member.get()) == &PyMemberDescr_Type, "a record has no slot of that name");
    offset_ = reinterpret_cast<PyMemberDescrObject*>(member.get())->d_member->offset;
  }

  // Of one that nobody has set it raises an error.
  int64_t number(PyObject* record) const { return number_in(place_in(record)); }
  void set_number(PyObject* record, int64_t value) const { set(record, checked(PyLong_FromLongLong(value))); }
  void set(PyObject* record, Held value) const {
    Held before(place_in(record));
    place_in(record) = value.release();
  }

 private:
  PyObject*& place_in(PyObject* record) const {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(record) + offset_);
  }

  Py_ssize_t offset_;
};

// All is called with Python's lock held.
class Ledger {
 public:
  explicit Ledger(PyObject* ledger)
      : counters(numbers_of<Counters>(ledger)),
        object_(borrowed(ledger)),
        type_(attribute(ledger, names()._plain_type)),
        records_(attribute(ledger, names().records)),
        births_(attribute(ledger, names().births)),
        dead_(attribute(ledger, names()._dead)),
        on_death_(attribute(ledger, names()._on_death)),
        size_(type_.get(), names().size),
        birth_(type_.get(), names().birth),
        state_(type_.get(), names().state) {}

  volatile Counters* const counters;

  PyObject* get() const { return object_.get(); }

  // Whether a record stands in this one, and not in another block's. Few have another type: buckets of a reducer, and
  // what is in a pool of the program's own.
  bool has(PyObject* record) const {
    return Py_TYPE(record) == reinterpret_cast<PyTypeObject*>(type_.get()) ||
           attribute(record, names().ledger).get() == object_.get();
  }

  int64_t state(PyObject* record) const { return state_.number(record); }

  // As `Ledger.mark`.
  void mark(PyObject* record, int64_t state) const {
    int64_t before = state_.number(record), size = size_.number(record);
    state_.set_number(record, state);
    counters->marked = counters->marked + (state != SETTLED) - (before != SETTLED);
    counters->counted = counters->counted + size * (((state & OUT) == 0) - ((before & OUT) == 0));
    if (state != SETTLED) counters->quiet = false;
  }

  // The record of the storage of this number; none: null. Also of one that Python has not met.
  Held record_at(PyObject* number) const {
    PyObject* known = PyDict_GetItemWithError(records_.get(), number);
    if (known != nullptr) return borrowed(known);
    if (PyErr_Occurred()) throw_python_error();
    Held met = call(object_.get(), names().record_at, number);
    return met.get() != Py_None ? std::move(met) : Held(nullptr);
  }

  // A record of a storage that has none, which does not count yet. Below zero: the session does not know it either.
  Held new_record(PyObject* storage, int64_t size, Held birth, int64_t number) const {
    Held type = attribute(object_.get(), names()._record_type);
    Held record = checked(PyObject_CallFunctionObjArgs(type.get(), storage, on_death_.get(), nullptr));
    size_.set_number(record.get(), size);
    birth_.set(record.get(), std::move(birth));
    state_.set_number(record.get(), SETTLED);
    if (number < 0) {
      checked(PyList_Append(births_.get(), record.get()));
    } else {
      Held id = checked(PyLong_FromLongLong(number));
      checked(PyObject_SetAttr(record.get(), names().id, id.get()));
      checked(PyObject_SetAttr(record.get(), names().reported, Py_True));
      checked(PyObject_SetItem(records_.get(), id.get(), record.get()));
    }
    return record;
  }

  // Whether some have died that count still.
  bool has_dead() const { return PyList_GET_SIZE(dead_.get()) != 0; }
  bool has_births() const { return PyList_GET_SIZE(births_.get()) != 0; }

 private:
  const Held object_, type_;
  const Held records_, births_, dead_;  // never replaced
  const Held on_death_;
  const Slot size_, birth_, state_;
};

}  // namespace tidelog
