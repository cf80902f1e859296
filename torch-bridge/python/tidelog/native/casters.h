// Storages as arguments of functions for Python.
#pragma once

#include <c10/core/StorageImpl.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include "python.h"

namespace pybind11::detail {

// A storage, or a tensor in its place. Of that no storage gets an object in Python: it would have that as long as it
// lives, and autograd would add nothing to its memory in place.
template <>
class type_caster<c10::StorageImpl> {
 public:
  static constexpr auto name = const_name("torch.UntypedStorage | torch.Tensor");
  template <class>
  using cast_op_type = c10::StorageImpl&;

  bool load(handle holder, bool) {
    if (THPVariable_Check(holder.ptr()))
      storage_ = THPVariable_Unpack(holder.ptr()).storage().unsafeGetStorageImpl();
    else if (THPStorage_Check(holder.ptr()))
      storage_ = THPStorage_Unpack(holder.ptr()).unsafeGetStorageImpl();
    return storage_ != nullptr;
  }

  operator c10::StorageImpl&() { return *storage_; }

 private:
  c10::StorageImpl* storage_ = nullptr;  // the caller has it
};

}  // namespace pybind11::detail
