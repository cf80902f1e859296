// Python's objects: references that are held, attributes, and errors as exceptions.
#pragma once

#include <Python.h>
#include <pthread.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <utility>

namespace tidelog {

// A reference that is held. Null where a call of Python's C API failed, which `checked` raises.
class Held {
 public:
  explicit Held(PyObject* object) : object_(object) {}
  Held(const Held&) = delete;
  Held(Held&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Held& operator=(Held other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Held() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_;
};

// Throws the error that Python has set. torch 2.11 has no such function.
[[noreturn]] void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

Held checked(PyObject* object) {
  if (object == nullptr) throw_python_error();
  return Held(object);
}

Held borrowed(PyObject* object) {
  Py_INCREF(object);
  return Held(object);
}

void checked(int status) {
  if (status < 0) throw_python_error();
}

// A value of C++ as Python has it.
template <class Value>
Held to_python(const Value& value) {
  return Held(py::cast(value).release().ptr());
}

int64_t number_in(PyObject* object) {
  int64_t number = PyLong_AsLongLong(object);
  if (number == -1 && PyErr_Occurred()) throw_python_error();
  return number;
}

Py_ssize_t size_of(PyObject* object) {
  Py_ssize_t size = PyObject_Size(object);
  if (size < 0) throw_python_error();
  return size;
}

template <class... Arguments>
Held call(PyObject* object, PyObject* method, Arguments... arguments) {
  return checked(PyObject_CallMethodObjArgs(object, method, arguments..., nullptr));
}

class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  ~Gil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

// The opposite, where something waits.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() { PyEval_RestoreThread(thread_); }

 private:
  PyThreadState* const thread_;
};

// Section that runs as a whole, with Python's lock held: `_whole.py` says why.
class Whole {
 public:
  Whole() : collects_(PyGC_Disable() != 0) { ++depth, ++here; }
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;
  ~Whole() {
    if (collects_) PyGC_Enable();
    --here;
    if (--depth == 0 && held != nullptr && PyList_GET_SIZE(held) != 0) let_go();
  }

  static inline int depth = 0;              // of those under way
  static inline thread_local int here = 0;  // of this thread's
  static inline PyObject* held = nullptr;  // a list: the signals whose handlers wait
  static inline PyObject* waiting = nullptr;  // a list: of other threads that wait for their turn (`_turns.py`)
  static inline pthread_t thread;          // of the handlers

 private:
  // Python calls the handlers soon: none of it runs before what is under way here has returned.
  static void let_go() {
    if (!pthread_equal(thread, pthread_self())) return;
    for (Py_ssize_t place = 0; place < PyList_GET_SIZE(held); ++place)
      PyErr_SetInterruptEx(PyLong_AsLong(PyList_GET_ITEM(held, place)));
    PyList_SetSlice(held, 0, PyList_GET_SIZE(held), nullptr);
  }

  const bool collects_;
};

// Names of methods, as Python has them in one place.
struct Names {
#define NAME(text) PyObject* text = PyUnicode_InternFromString(#text)
  NAME(after);
  NAME(allocate);
  NAME(calls);
  NAME(evict);
  NAME(rebind);
  NAME(refuse);
  NAME(release);
  NAME(settle);
  NAME(why_unmovable);
#undef NAME
};

const Names& names() {
  static const Names all;
  return all;
}

}  // namespace tidelog
