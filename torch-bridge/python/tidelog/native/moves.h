// What Python calls of `memory.h`. The first argument of each is a storage.
#pragma once

#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include "allocator.h"
#include "records.h"
#include "python.h"

namespace tidelog::moves {

inline c10::StorageImpl& impl_of(PyObject* storage) {
  TORCH_CHECK_TYPE(THPStorage_Check(storage), "expected a storage");
  return *THPStorage_Unpack(storage).unsafeGetStorageImpl();
}

// Of a storage, or a tensor that has one. Of that no storage gets an object in Python: it would have that as long as it
// lives, and autograd would add nothing to its memory in place.
inline c10::StorageImpl& impl_in(PyObject* holder) {
  return THPVariable_Check(holder) ? *THPVariable_Unpack(holder).storage().unsafeGetStorageImpl() : impl_of(holder);
}

inline Message message_in(PyObject* text) {
  if (text == Py_None) return std::nullopt;
  const char* message = PyUnicode_AsUTF8(text);
  if (message == nullptr) throw_python_error();
  return message;
}

PyObject* take(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *storage, *message;
  if (!PyArg_ParseTuple(args, "OO", &storage, &message)) return nullptr;
  Records::take(impl_of(storage), message_in(message));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* empty(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *storage, *message;
  if (!PyArg_ParseTuple(args, "OO", &storage, &message)) return nullptr;
  c10::StorageImpl& impl = impl_of(storage);
  Records::take(impl, message_in(message));
  impl.set_nbytes(size_t{0});
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* give(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *storage, *message;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "OnO", &storage, &size, &message)) return nullptr;
  return PyLong_FromUnsignedLongLong(Records::give(impl_of(storage), size, message_in(message)));
  END_HANDLE_TH_ERRORS
}

PyObject* swap(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *storage, *other, *message, *noting;
  if (!PyArg_ParseTuple(args, "OOOO", &storage, &other, &message, &noting)) return nullptr;
  Records::swap(impl_of(storage), impl_of(other), message_in(message));
  checked(PyObject_CallNoArgs(noting));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* discard(PyObject*, PyObject* storage) {
  HANDLE_TH_ERRORS
  Records::give(impl_of(storage), 0, std::nullopt);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* guard(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *storage, *message;
  if (!PyArg_ParseTuple(args, "OO", &storage, &message)) return nullptr;
  tidelog::guard(impl_of(storage), message_in(message));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* open_to_reads(PyObject*, PyObject* storage) {
  HANDLE_TH_ERRORS
  Guard::lift(impl_of(storage));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* without_memory(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject* like;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "On", &like, &size)) return nullptr;
  return THPStorage_Wrap(tidelog::without_memory(impl_of(like), size));
  END_HANDLE_TH_ERRORS
}

// Arguments: addresses of the library's functions that allocate and free.
PyObject* use_allocator(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  unsigned long long allocate, free;
  if (!PyArg_ParseTuple(args, "KK", &allocate, &free)) return nullptr;
  return PyBool_FromLong(ArenaAllocator::use(reinterpret_cast<ArenaAllocator::Allocate>(allocate),
                                             reinterpret_cast<ArenaAllocator::Free>(free)));
  END_HANDLE_TH_ERRORS
}

}  // namespace tidelog::moves
