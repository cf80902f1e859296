// Errors that say that a device has no memory.
#pragma once

#include <optional>
#include <string>

#include "python.h"

namespace tidelog {

// Returns the text of the exception that is being handled, if it is one of missing memory, in C++ or in Python. A
// refusal of ours is none, though its class is a subclass.
inline std::optional<std::string> said_of_no_memory() {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return error.what_without_backtrace();
  } catch (python_error& error) {
    static PyObject* no_memory =
        checked(PyObject_GetAttrString(checked(PyImport_ImportModule("torch")).get(), "OutOfMemoryError")).release();
    if (error.type != no_memory) return std::nullopt;
    Held text = checked(PyObject_Str(error.value));
    const char* said = PyUnicode_AsUTF8(text.get());
    return said != nullptr ? said : "";
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace tidelog
