// The ledger and its records, for Python.
#pragma once

#include <array>

#include "ledger.h"
#include "moves.h"
#include "stream_types.h"

namespace tidelog::types {

// -- records ----------------------------------------------------------------------------------------------

struct RecordObject {
  PyObject_HEAD;
  RecordPtr record;
};

inline PyTypeObject RECORD = {PyVarObject_HEAD_INIT(nullptr, 0) "tidelog.Record"};

inline Record& record_in(PyObject* object) {
  TORCH_CHECK_TYPE(Py_TYPE(object) == &RECORD, "expected a record");
  return *reinterpret_cast<RecordObject*>(object)->record;
}

// The record as Python has it; one that it has had before is the same.
inline PyObject* wrap(Record* record) {
  if (record == nullptr) return none();
  if (record->object != nullptr) return Py_NewRef(record->object);
  auto* made = PyObject_New(RecordObject, &RECORD);
  if (made == nullptr) throw_python_error();
  new (&made->record) RecordPtr(RecordPtr::reclaim_copy(record));
  record->object = reinterpret_cast<PyObject*>(made);
  return record->object;
}

inline void end_record(PyObject* object) {
  auto* self = reinterpret_cast<RecordObject*>(object);
  self->record->object = nullptr;
  self->record.~RecordPtr();
  PyObject_Free(object);
}

// The name people know the tensor by.
inline std::string described(const Record& record) {
  if (record.name != nullptr) return string_in(record.name);
  if (record.birth.op == nullptr)
    return "a tensor of " + std::to_string(record.size) + " bytes (storage " + std::to_string(record.number) + ")";
  if (record.birth.index < 0) return "an output of " + *record.birth.op;
  return "output " + std::to_string(record.birth.slot) + " of " + *record.birth.op + " (op " +
         std::to_string(record.birth.index) + ")";
}

// What an access meets that nothing has brought the bytes back for.
inline std::string guard_text(const Record& record) {
  const std::string& outside = record.ledger != nullptr ? record.ledger->outside : "on NVMe";
  return "tidelog: tensor " + described(record) + " is " + outside +
         ", and this access did not go through the offload block (a thread that is older than it, a raw kernel, or "
         "after the block). "
         "Touch it by a torch op inside the block first, or call restore() on the block's object.";
}

// The text of the guard while the block runs.
inline Message message_of(const Record& record) {
  return record.is_guarded ? Message(guard_text(record)) : std::nullopt;
}

inline PyObject* called(PyObject* object, PyObject*, PyObject*) {
  return guarded([&]() -> PyObject* {
    c10::Storage storage = record_in(object).storage();
    return storage ? THPStorage_Wrap(std::move(storage)) : none();
  });
}

template <auto member>
PyObject* get_number(PyObject* object, void*) {
  return guarded([&] { return number(record_in(object).*member); });
}
template <auto member>
PyObject* get_flag(PyObject* object, void*) {
  return guarded([&] { return boolean(record_in(object).*member); });
}
template <auto member>
int set_number(PyObject* object, PyObject* value, void*) {
  return guarded_setter([&] { record_in(object).*member = number_in(value); });
}
template <auto member>
int set_flag(PyObject* object, PyObject* value, void*) {
  return guarded_setter([&] { record_in(object).*member = truth_in(value); });
}
template <auto member>
PyObject* get_object(PyObject* object, void*) {
  return guarded([&] {
    PyObject* found = record_in(object).*member;
    return Py_NewRef(found != nullptr ? found : Py_None);
  });
}
template <auto member>
int set_object(PyObject* object, PyObject* value, void*) {
  return guarded_setter(
      [&] { Held(std::exchange(record_in(object).*member, value == Py_None ? nullptr : Py_NewRef(value))); });
}

struct LedgerObject;
PyObject* ledger_of(PyObject* object, void*);

inline PyGetSetDef RECORD_MEMBERS[] = {
    {"ledger", ledger_of, nullptr, "The ledger that it stands in; None: in none.", nullptr},
    {"id",
     [](PyObject* object, void*) {
       return guarded([&] {
         Record& record = record_in(object);
         return record.ledger != nullptr ? number(record.ledger->number_of(record)) : none();
       });
     },
     nullptr, "The session's number for it, given when it is first asked for; None: it stands in no ledger.", nullptr},
    {"state", [](PyObject* object, void*) { return guarded([&] { return number(record_in(object).state); }); }, nullptr,
     "The mark that the session put on it.", nullptr},
    {"is_out",
     [](PyObject* object, void*) {
       return guarded([&] { return boolean((record_in(object).state & OUT) != 0 && record_in(object).present == 0); });
     },
     nullptr, "Whether nothing of it is in memory.", nullptr},
    {"loans", [](PyObject* object, void*) { return guarded([&] { return number(record_in(object).loans); }); }, nullptr,
     "Ops of other threads that are using it right now.", nullptr},
    {"size", get_number<&Record::size>, nullptr, "Its bytes.", nullptr},
    {"present", get_number<&Record::present>, nullptr, "Bytes in memory while it is out in part.", nullptr},
    {"pins", get_number<&Record::pins>, set_number<&Record::pins>, "Aliases that nobody sees.", nullptr},
    {"addresses_end", get_number<&Record::addresses_end>, set_number<&Record::addresses_end>,
     "Scopes after which nobody uses an address that they asked for.", nullptr},
    {"async_uses", get_number<&Record::async_uses>, nullptr, "Ops that have returned and use it still.", nullptr},
    {"reported", get_flag<&Record::is_reported>, nullptr, "Whether the session has heard of it.", nullptr},
    {"in_flight", get_flag<&Record::in_flight>, nullptr, "Whether a device or a copy may touch its memory.", nullptr},
    {"is_guarded", get_flag<&Record::is_guarded>, set_flag<&Record::is_guarded>, "When it is out.", nullptr},
    {"moves", get_flag<&Record::moves>, set_flag<&Record::moves>, "Not in memory of the program's own.", nullptr},
    {"name", get_object<&Record::name>, set_object<&Record::name>, "What people call it.", nullptr},
    {"parted", get_object<&Record::parted>, set_object<&Record::parted>, "Its memory, of which parts move.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

inline PyMethodDef RECORD_METHODS[] = {
    {"describe",
     [](PyObject* object, PyObject*) { return guarded([&] { return text(described(record_in(object))); }); },
     METH_NOARGS, "The name people know the tensor by."},
    {"guard_text",
     [](PyObject* object, PyObject*) { return guarded([&] { return text(guard_text(record_in(object))); }); },
     METH_NOARGS, "What an access meets that nothing has brought the bytes back for."},
    {"guard",
     [](PyObject* object, PyObject*) {
       return guarded([&] {
         Message message = message_of(record_in(object));
         return message ? text(*message) : none();
       });
     },
     METH_NOARGS, "The text of the guard while the block runs; None: there is none."},
    {"borrow",
     [](PyObject* object, PyObject* more) {
       return guarded([&] {
         Record& record = record_in(object);
         record.loans += number_in(more);
         record.was_borrowed |= record.loans != 0;
         return none();
       });
     },
     METH_O, "Counts another thread in (1) or out (-1) that uses the memory right now."},
    {nullptr, nullptr, 0, nullptr},
};

// `storage._tide`: the record of a storage, where a block counts it.
inline PyObject* record_of_storage(PyObject*, PyObject* storage, PyObject*) {
  return guarded([&]() -> PyObject* {
    if (storage == nullptr || storage == Py_None) return none();
    Record* record = Records::of(moves::impl_in(storage));
    return record != nullptr && record->ledger != nullptr ? wrap(record) : none();
  });
}

inline PyObject* record_in_block(PyObject*, PyObject* storage) { return record_of_storage(nullptr, storage, nullptr); }

// The update that hangs on a storage, and has not run; None: there is none.
inline PyObject* update_on(PyObject*, PyObject* storage) {
  return guarded([&] { return Ledger::update_on(moves::impl_in(storage)).release(); });
}

// The same where no block counts it: other threads' uses are noted before one does.
inline PyObject* record_for(PyObject*, PyObject* storage) {
  return guarded([&] { return wrap(&Records::made_for(moves::impl_of(storage))); });
}

inline PyTypeObject RECORD_OF = {PyVarObject_HEAD_INIT(nullptr, 0) "tidelog.RecordOf"};

// -- ledgers ----------------------------------------------------------------------------------------------

struct LedgerObject {
  PyObject_HEAD;
  Ledger* ledger;
};

inline PyTypeObject LEDGER = {PyVarObject_HEAD_INIT(nullptr, 0) "tidelog.Ledger"};

inline Ledger& ledger_in(PyObject* object) { return *reinterpret_cast<LedgerObject*>(object)->ledger; }

inline PyObject* ledger_of(PyObject* object, void*) {
  return guarded([&] {
    Ledger* ledger = record_in(object).ledger;
    return ledger != nullptr ? Py_NewRef(ledger->object) : none();
  });
}

// Its arguments: the device, its streams, the kind and number of where its memory is, the limit, where storages go, the
// process.
inline int make_ledger(PyObject* object, PyObject* args, PyObject*) {
  return guarded_setter([&] {
    PyObject *device, *streams;
    const char *kind, *outside;
    int index;
    long long limit;
    long process;
    if (!PyArg_ParseTuple(args, "OOsiLsl", &device, &streams, &kind, &index, &limit, &outside, &process))
      throw_python_error();
    c10::Device place(c10::Device(kind).type(), static_cast<c10::DeviceIndex>(index));
    auto* ledger = new Ledger(place, streams_in(streams), limit);
    ledger->device = borrowed(device);
    ledger->streams_object = borrowed(streams);
    ledger->outside = outside;
    ledger->process = process;
    ledger->object = object;
    reinterpret_cast<LedgerObject*>(object)->ledger = ledger;
  });
}

inline int clear_ledger(PyObject* object) {
  if (Ledger* ledger = reinterpret_cast<LedgerObject*>(object)->ledger)
    for (Held* each : {&ledger->device, &ledger->access, &ledger->when_full}) *each = Held(nullptr);
  return 0;
}

inline int visit_ledger(PyObject* object, visitproc visit, void* arg) {
  if (Ledger* ledger = reinterpret_cast<LedgerObject*>(object)->ledger) {
    Py_VISIT(ledger->device.get());
    Py_VISIT(ledger->streams_object.get());
    Py_VISIT(ledger->access.get());
    Py_VISIT(ledger->when_full.get());
  }
  return 0;
}

inline void end_ledger(PyObject* object) {
  PyObject_GC_UnTrack(object);
  delete std::exchange(reinterpret_cast<LedgerObject*>(object)->ledger, nullptr);
  Py_TYPE(object)->tp_free(object);
}

#define METHOD(name, flags, help, ...) TIDELOG_METHOD(name, flags, help, Ledger& ledger = ledger_in(self), __VA_ARGS__)
#define GETTER(name, value, help)        \
  {name,                                 \
   [](PyObject* self, void*) {           \
     return guarded([&] {                \
       Ledger& ledger = ledger_in(self); \
       return value;                     \
     });                                 \
   },                                    \
   nullptr, help, nullptr}
#define FLAG(name, member, help)                                                                         \
  {name, [](PyObject* self, void*) { return guarded([&] { return boolean(ledger_in(self).member); }); }, \
   [](PyObject* self, PyObject* value, void*) {                                                          \
     return guarded_setter([&] { ledger_in(self).member = truth_in(value); });                           \
   },                                                                                                    \
   help, nullptr}

// The arguments of a call.
template <size_t count>
std::array<PyObject*, count> arguments_in(PyObject* args) {
  std::array<PyObject*, count> found{};
  TORCH_CHECK_TYPE(static_cast<size_t>(PyTuple_GET_SIZE(args)) == count, "another number of arguments");
  for (size_t place = 0; place < count; ++place) found[place] = PyTuple_GET_ITEM(args, place);
  return found;
}

inline PyObject* list_of(const std::vector<RecordPtr>& records) {
  Held list = checked(PyList_New(0));
  for (const RecordPtr& each : records) checked(PyList_Append(list.get(), Held(wrap(each.get())).get()));
  return list.release();
}

inline PyMethodDef LEDGER_METHODS[] = {
    METHOD("connect", METH_VARARGS,
           "How others reach the block's storages, and what is called where a birth exceeds the limit.",
           auto [access, when_full] = arguments_in<2>(given);
           ledger.access = borrowed(access); ledger.when_full = borrowed(when_full)),
    METHOD("record_of", METH_O, "A storage's record; None: it is not ours to move.",
           return wrap(ledger.record_of(moves::impl_in(given)))),
    METHOD("record_of_written", METH_O, "The same of a storage that an op writes.",
           return wrap(ledger.record_of_written(moves::impl_in(given)))),
    METHOD("number_of", METH_O, "The number by which the session knows a storage.",
           return number(ledger.number_of(record_in(given)))),
    METHOD("number_from", METH_O, "The numbers below this are the session's own.",
           ledger.number_from(number_in(given))),
    METHOD("reuse_numbers", METH_NOARGS, "A step begins.", ledger.reuse_numbers()),
    METHOD("record_at", METH_O, "The record of the storage of this number; None: there is none.",
           return wrap(ledger.record_at(number_in(given)).get())),
    METHOD("name_of", METH_O, "What errors call the storage of this number; None: there is none.",
           auto record = ledger.record_at(number_in(given));
           return record ? text(described(*record)) : none()),
    METHOD("all", METH_NOARGS, "The records of all storages that live.", return list_of(ledger.all())),
    METHOD("unmovable", METH_NOARGS, "The names of storages that stay where they are.",
           Held list = checked(PyList_New(0));
           for (const RecordPtr& each : ledger.all()) if (c10::Storage storage = each->storage();
                                                          storage && !ledger.movable(*each->impl))
               checked(PyList_Append(list.get(), checked(text(described(*each))).get()));
           return list.release()),
    METHOD("discard", METH_O, "A storage that is out is emptied.", ledger.discard(moves::impl_of(given))),
    METHOD("forget", METH_O, "Another block takes the storage over.", ledger.forget(record_in(given))),
    METHOD("owns", METH_O, "Whether a storage's memory is of the kind that the block moves.",
           return boolean(ledger.owns(moves::impl_of(given)))),
    METHOD("mark", METH_VARARGS, "Notes the mark that the session put on a storage.",
           auto [record, state] = arguments_in<2>(given);
           ledger.mark(record_in(record), static_cast<uint8_t>(number_in(state)))),
    METHOD("has_present", METH_VARARGS, "So many bytes are in memory of a storage of which parts are out.",
           auto [record, size] = arguments_in<2>(given);
           ledger.has_present(record_in(record), number_in(size))),
    METHOD("modifies", METH_O, "The storage is about to differ from its copy, by what the session is asked about.",
           ledger.modifies(record_in(given))),
    METHOD("modified", METH_O, "The same by what it is not asked about.", ledger.modified(record_in(given))),
    METHOD("measure_again", METH_O, "Something may have resized this storage.",
           ledger.measure_again(moves::impl_in(given))),
    METHOD("has_away", METH_NOARGS, "Whether any storage has no memory, or not its bytes yet.",
           return boolean(ledger.has_away())),
    METHOD("movable", METH_O, "Whether a storage's memory is torch's own to give and take.",
           return boolean(ledger.movable(moves::impl_of(given)))),
    METHOD("pin", METH_O, "Keeps a storage where it is.", ledger.pin(record_in(given))),
    METHOD("unpin", METH_O, "Takes one `pin` back.", ledger.unpin(record_in(given))),
    METHOD("async_use_begins", METH_O, "An op that has returned uses the storage.",
           ledger.async_use(record_in(given), true)),
    METHOD("async_use_ends", METH_O, "The opposite.", ledger.async_use(record_in(given), false)),
    METHOD("begins", METH_O, "A device or a copy may touch the storage's memory: it lives meanwhile.",
           Records::begins(record_in(given), true)),
    METHOD("ends", METH_O, "None does any more.", Records::ends(record_in(given))),
    METHOD("launches", METH_O,
           "An op is about to be launched on the current stream, and may use any storage. It makes at most so many "
           "bytes.",
           ledger.launches(number_in(given))),
    METHOD("take", METH_O, "A storage that is OUT loses its memory.",
           ledger.take(record_in(given), message_of(record_in(given)))),
    METHOD("make_room", METH_O, "So many bytes more are within the limit, on the GPU, too.",
           ledger.make_room(number_in(given))),
    METHOD("let_go", METH_NOARGS, "All memory goes that has been given up.", ledger.let_go()),
    METHOD("let_go_at_once", METH_NOARGS, "The same where no device reads any of it.", ledger.let_go_at_once()),
    METHOD("share", METH_O, "A storage has its bytes again, or is about to lose its memory.",
           ledger.share(moves::impl_of(given))),
    METHOD("after", METH_O, "The handle of an event behind all that was launched, noted with a record; 0: it is done.",
           return PyLong_FromVoidPtr(ledger.after(record_in(given)))),
    METHOD("order", METH_O, "From here on streams wait for the bytes that are on their way to a storage.",
           ledger.order(record_in(given))),
    METHOD("restart_peak", METH_NOARGS, "What was alive before counts for it no longer.", ledger.peak = ledger.live()),
    METHOD("is_at_rest", METH_NOARGS, "Whether nothing is out, on its way or copied, and there is room.",
           return boolean(ledger.is_at_rest())),
    METHOD("begin_quiet", METH_NOARGS, "All is at rest: ops need not be looked at from here on.", ledger.let_go();
           ledger.quiet = true),
    METHOD("end_quiet", METH_NOARGS, "From here on every op is looked at.", ledger.quiet = false),
    METHOD("flush", METH_NOARGS, "Sends what the session has not heard of.", ledger.flush()),
    {nullptr, nullptr, 0, nullptr},
};

inline PyGetSetDef LEDGER_MEMBERS[] = {
    GETTER("limit", number(ledger.limit), "Of `live`."),
    GETTER("live", number(ledger.live()), "Bytes of the storages that are in memory: all but those that are OUT."),
    GETTER("counted", number(ledger.counted), "As `live`, with those that have died unseen."),
    GETTER("departing", number(ledger.departing()), "Bytes that have been given up and are read still."),
    GETTER("peak", number(ledger.peak), "The highest `live` at an op boundary."),
    GETTER("marked", number(ledger.marked), "Storages that are not plainly resident."),
    GETTER("access", Py_NewRef(ledger.access.get()), "How other blocks and threads reach its storages."),
    GETTER("outside", text(ledger.outside), "Where storages are that are out, in words."),
    GETTER("process", number(ledger.process), "Whose block it is."),
    GETTER("quiet", boolean(ledger.quiet), "Nothing is out, on its way or copied, and there is room."),
    FLAG("expects_buckets", expects_buckets, "Whether there is a reducer of DDP."),
    FLAG("newborn_is_guarded", newborn_is_guarded, "Whether storages that are met from now on are guarded when out."),
    FLAG("newborn_moves", newborn_moves, "Whether they move."),
    {"random_state_bytes", nullptr,
     [](PyObject* self, PyObject* value, void*) {
       return guarded_setter([&] { ledger_in(self).random_state_bytes = number_in(value); });
     },
     "The size of the host's random state.", nullptr},
    FLAG("asks_device", asks_device, "Whether plain memory on the host may be locked by CUDA."),
    FLAG("is_in_child", is_in_child, "Whether this is a child of a fork: the session is its parent's."),
    FLAG("maps_memory", maps_memory, "Whether what comes back has memory of Python's, not of torch's."),
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

#undef METHOD
#undef GETTER
#undef FLAG

inline int ready() {
  RECORD.tp_basicsize = sizeof(RecordObject);
  RECORD.tp_dealloc = end_record;
  RECORD.tp_flags = Py_TPFLAGS_DEFAULT;
  RECORD.tp_call = called;
  RECORD.tp_getset = RECORD_MEMBERS;
  RECORD.tp_methods = RECORD_METHODS;
  RECORD_OF.tp_basicsize = sizeof(PyObject);
  RECORD_OF.tp_flags = Py_TPFLAGS_DEFAULT;
  RECORD_OF.tp_new = PyType_GenericNew;
  RECORD_OF.tp_descr_get = record_of_storage;
  LEDGER.tp_basicsize = sizeof(LedgerObject);
  LEDGER.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  LEDGER.tp_new = PyType_GenericNew;
  LEDGER.tp_init = make_ledger;
  LEDGER.tp_dealloc = end_ledger;
  LEDGER.tp_traverse = visit_ledger;
  LEDGER.tp_clear = clear_ledger;
  LEDGER.tp_getset = LEDGER_MEMBERS;
  LEDGER.tp_methods = LEDGER_METHODS;
  for (PyTypeObject* type : {&RECORD, &RECORD_OF, &LEDGER})
    if (PyType_Ready(type) < 0) return -1;
  return ready_streams();
}

}  // namespace tidelog::types
