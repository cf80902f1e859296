// The tensors of an op.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>

#include "block.h"

namespace tidelog {

using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

// Calls `visit` with each tensor of a value; false: it holds something else that has storages, or `visit`
// has said false.
template <class Visit>
bool each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    // A number of Python's, as an op of tensors gets it, is no tensor to a mode either.
    return !tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number() || visit(tensor);
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& item : value.toListRef())
      if (!each_tensor(item, visit)) return false;
    return true;
  }
  return !value.isStorage() && !value.isObject() && !value.isTuple() && !value.isGenericDict();
}

// Whether a tensor is no more than its storage: no subclass with a dispatch of its own, not sparse.
bool is_plain(const at::Tensor& tensor) {
  return tensor.has_storage() && !tensor.key_set().has(DispatchKey::Python) && !tensor.is_nested();
}

}  // namespace tidelog
