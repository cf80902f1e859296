// The calls of the library's C ABI that come with ops and moves. Their addresses come from Python, which has the
// library.
#pragma once

#include <tidelog.h>

#include "python.h"

namespace tidelog {

constexpr auto MODIFIES = static_cast<uint32_t>(TIDE_MODIFIES);  // in a use: the op writes the storage

struct SessionCalls {
  SessionCalls() = default;

  // `session`: of `_native.py`.
  explicit SessionCalls(PyObject* session) : session(session) {
    Held calls = call(session, names().calls);
    handle = address(calls.get(), 0);
    size_t place = 0;
    auto next = [&](auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address(calls.get(), ++place));
    };
    next(sync), next(resized), next(modified), next(pin), next(async_use);
    next(op_begin), next(op_end), next(nest), next(set_callbacks), next(divisible);
  }

  // Raises the error of a status below zero: that of a callback, or the library's.
  void require(int32_t status) const {
    if (status >= 0) return;
    if (PyErr_Occurred() != nullptr) throw_python_error();
    tidelog::call(session, names().refuse, to_python(status).get());
  }

  PyObject* session = nullptr;  // borrowed: the block has it
  uint64_t handle = 0;
  decltype(&tide_session_sync) sync = nullptr;
  decltype(&tide_session_resized) resized = nullptr;
  decltype(&tide_session_modified) modified = nullptr;
  decltype(&tide_session_pin) pin = nullptr;
  decltype(&tide_session_async_use) async_use = nullptr;
  decltype(&tide_session_op_begin) op_begin = nullptr;
  decltype(&tide_session_op_end) op_end = nullptr;
  decltype(&tide_session_nest) nest = nullptr;
  decltype(&tide_session_set_callbacks) set_callbacks = nullptr;
  decltype(&tide_session_divisible) divisible = nullptr;

 private:
  static uint64_t address(PyObject* calls, size_t place) {
    uint64_t found = PyLong_AsUnsignedLongLong(PyTuple_GetItem(calls, place));
    if (PyErr_Occurred()) throw_python_error();
    return found;
  }
};

}  // namespace tidelog
