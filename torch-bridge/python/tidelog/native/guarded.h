// Functions of Python's in C++: what runs in them, what they are given, and what they return.
#pragma once

#include <string>

#include "python.h"

namespace tidelog::types {

// Runs what may throw, as a function of Python's.
template <class Function>
auto guarded(const Function& function) -> decltype(function()) {
  HANDLE_TH_ERRORS
  return function();
  END_HANDLE_TH_ERRORS_RET({})
}

template <class Function>
int guarded_setter(const Function& function) {
  HANDLE_TH_ERRORS
  function();
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

// A method of a type: `declaration` says what `self` is in C++, and the rest what is done with it and the argument
// `given`.
#define TIDELOG_METHOD(name, flags, help, declaration, ...) \
  {name,                                                    \
   [](PyObject* self, [[maybe_unused]] PyObject* given) {   \
     return guarded([&]() -> PyObject* {                    \
       [[maybe_unused]] declaration;                        \
       __VA_ARGS__;                                         \
       return none();                                       \
     });                                                    \
   },                                                       \
   flags, help}

inline PyObject* none() { return Py_NewRef(Py_None); }
inline PyObject* number(int64_t value) { return PyLong_FromLongLong(value); }
inline PyObject* boolean(bool value) { return PyBool_FromLong(value); }
inline PyObject* text(const std::string& value) { return PyUnicode_FromStringAndSize(value.data(), value.size()); }

inline std::string string_in(PyObject* text) {
  const char* found = PyUnicode_AsUTF8(text);
  if (found == nullptr) throw_python_error();
  return found;
}

inline bool truth_in(PyObject* value) {
  int found = PyObject_IsTrue(value);
  if (found < 0) throw_python_error();
  return found != 0;
}

}  // namespace tidelog::types
