// Streams and events, for Python.
#pragma once

#include "guarded.h"
#include "streams.h"

namespace tidelog::types {

// -- events -----------------------------------------------------------------------------------------------

struct EventObject {
  PyObject_HEAD;
  EventPtr event;
};

inline PyTypeObject EVENT = {PyVarObject_HEAD_INIT(nullptr, 0) "tidelog.Event"};

inline c10::Event& event_in(PyObject* object) { return *reinterpret_cast<EventObject*>(object)->event; }

inline PyObject* wrap(EventPtr event) {
  if (event == nullptr) return none();
  auto* made = PyObject_New(EventObject, &EVENT);
  if (made == nullptr) throw_python_error();
  new (&made->event) EventPtr(std::move(event));
  return reinterpret_cast<PyObject*>(made);
}

inline void end_event(PyObject* object) {
  reinterpret_cast<EventObject*>(object)->event.~EventPtr();
  PyObject_Free(object);
}

inline PyMethodDef EVENT_METHODS[] = {
    {"query", [](PyObject* object, PyObject*) { return guarded([&] { return boolean(event_in(object).query()); }); },
     METH_NOARGS, "Whether it has happened."},
    {"synchronize",
     [](PyObject* object, PyObject*) {
       return guarded([&] {
         EventPtr event = reinterpret_cast<EventObject*>(object)->event;
         WithoutGil unlocked;
         event->synchronize();
         return Py_None;  // which lives for good
       });
     },
     METH_NOARGS, "Waits until it has."},
    {nullptr, nullptr, 0, nullptr},
};

inline PyGetSetDef EVENT_MEMBERS[] = {
    {"handle",
     [](PyObject* object, void*) { return guarded([&] { return PyLong_FromVoidPtr(event_in(object).eventId()); }); },
     nullptr, "By which others know it.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

// -- streams ----------------------------------------------------------------------------------------------

struct StreamsObject {
  PyObject_HEAD;
  Streams* streams;
};

inline PyTypeObject STREAMS = {PyVarObject_HEAD_INIT(nullptr, 0) "tidelog.Streams"};

inline Streams& streams_in(PyObject* object) {
  TORCH_CHECK_TYPE(Py_TYPE(object) == &STREAMS, "expected streams");
  return *reinterpret_cast<StreamsObject*>(object)->streams;
}

// Its arguments: the kind and number of the device. Without any it has those of the host.
inline PyObject* make_streams(PyTypeObject* type, PyObject* args, PyObject*) {
  return guarded([&]() -> PyObject* {
    const char* kind = nullptr;
    int index = -1;
    if (!PyArg_ParseTuple(args, "|si", &kind, &index)) throw_python_error();
    Held made = checked(type->tp_alloc(type, 0));
    Streams*& streams = reinterpret_cast<StreamsObject*>(made.get())->streams;
    if (kind == nullptr)
      streams = new Streams;
    else
      streams = new DeviceStreams(c10::Device(c10::Device(kind).type(), static_cast<c10::DeviceIndex>(index)));
    return made.release();
  });
}

inline void end_streams(PyObject* object) {
  delete std::exchange(reinterpret_cast<StreamsObject*>(object)->streams, nullptr);
  Py_TYPE(object)->tp_free(object);
}

inline Py_ssize_t count_streams(PyObject* object) { return static_cast<Py_ssize_t>(streams_in(object).count()); }

inline void call_on(Streams& streams, PyObject* args) {
  long long stream = 0;
  PyObject* function = nullptr;
  if (!PyArg_ParseTuple(args, "LO", &stream, &function)) throw_python_error();
  streams.call_on(stream, function);
}

inline PyObject* list_of(const std::vector<int64_t>& numbers) {
  Held list = checked(PyList_New(0));
  for (int64_t each : numbers) checked(PyList_Append(list.get(), checked(PyLong_FromLongLong(each)).get()));
  return list.release();
}

#define METHOD(name, flags, help, ...) \
  TIDELOG_METHOD(name, flags, help, Streams& streams = streams_in(self), __VA_ARGS__)

inline PyMethodDef STREAMS_METHODS[] = {
    METHOD("after", METH_NOARGS, "An event behind everything that was launched; None: it is all done.",
           return wrap(streams.after())),
    METHOD("await_copies", METH_NOARGS, "All bytes that are on their way are there when this returns.",
           streams.await_copies()),
    METHOD("forget_copies", METH_NOARGS, "In a child of a fork: they are its parent's.", streams.forget_copies()),
    METHOD("current", METH_NOARGS, "The number of the current stream.", return number(streams.current())),
    METHOD("call_on", METH_VARARGS, "Calls a function while that stream is the current one, which then waits for it.",
           call_on(streams, given)),
    METHOD("await_others", METH_NOARGS, "What is launched next waits for all that was launched on other streams.",
           streams.await_others()),
    METHOD("op_begins", METH_O, "An op of a step that is being profiled is about to be launched.",
           streams.op_begins(number_in(given))),
    METHOD("op_ran", METH_NOARGS, "It was launched.", streams.op_ran()),
    METHOD("durations", METH_NOARGS, "The nanoseconds that each op took.", return list_of(streams.durations())),
    {nullptr, nullptr, 0, nullptr},
};

#undef METHOD

inline PyGetSetDef STREAMS_MEMBERS[] = {
    {"copies", [](PyObject* self, void*) { return guarded([&] { return number(streams_in(self).copies()); }); },
     nullptr, "How many fetches have ended whose bytes may be on their way.", nullptr},
    {"is_blind", [](PyObject* self, void*) { return guarded([&] { return boolean(streams_in(self).is_blind); }); },
     [](PyObject* self, PyObject* value, void*) {
       return guarded_setter([&] { streams_in(self).is_blind = truth_in(value); });
     },
     "Whether ops were launched that nobody looked at.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

inline PySequenceMethods STREAMS_SEQUENCE = {count_streams};

inline int ready_streams() {
  EVENT.tp_basicsize = sizeof(EventObject);
  EVENT.tp_dealloc = end_event;
  EVENT.tp_flags = Py_TPFLAGS_DEFAULT;
  EVENT.tp_getset = EVENT_MEMBERS;
  EVENT.tp_methods = EVENT_METHODS;
  STREAMS.tp_basicsize = sizeof(StreamsObject);
  STREAMS.tp_flags = Py_TPFLAGS_DEFAULT;
  STREAMS.tp_new = make_streams;
  STREAMS.tp_dealloc = end_streams;
  STREAMS.tp_as_sequence = &STREAMS_SEQUENCE;
  STREAMS.tp_getset = STREAMS_MEMBERS;
  STREAMS.tp_methods = STREAMS_METHODS;
  for (PyTypeObject* type : {&EVENT, &STREAMS})
    if (PyType_Ready(type) < 0) return -1;
  return 0;
}

}  // namespace tidelog::types
