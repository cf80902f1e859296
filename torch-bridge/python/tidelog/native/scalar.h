// Numbers that C++ reads out of tensors: `torch.tensor` of a list of tensors, `x[mask] = t`, constructors of one type.
// They hide all modes first, so that no hook sees the op. What it reads comes back here.
#pragma once

#include <ATen/ops/_local_scalar_dense_ops.h>

#include "block.h"

namespace tidelog {

// Called with a storage that must come back first. Null: nobody has asked for it.
PyObject* bring_back = nullptr;

template <class Impl>
bool is_guarded(const Impl& storage) {
  if constexpr (requires { storage.throw_on_immutable_data_ptr(); }) return storage.throw_on_immutable_data_ptr();
  return true;  // the function looks closer
}

class ReadsScalar final : public c10::OperatorKernel {
 public:
  at::Scalar operator()(c10::DispatchKeySet keys, const at::Tensor& tensor) {
    if (bring_back != nullptr && tensor.has_storage()) {
      c10::Storage storage = tensor.storage();
      if (is_guarded(*storage.unsafeGetStorageImpl())) {
        Gil gil;
        checked(PyObject_CallOneArg(bring_back, checked(THPStorage_Wrap(std::move(storage))).get()));
      }
    }
    const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
    return at::_ops::_local_scalar_dense::redispatch(keys & below, tensor);
  }
};

// Registered once, for good: another thread may run ops.
void watch_scalars(PyObject* function) {
  static auto* registration = new auto(c10::Dispatcher::singleton().registerImpl(
      {"aten::_local_scalar_dense", ""}, c10::DispatchKey::BackendSelect,
      c10::KernelFunction::makeFromUnboxedFunctor<false, ReadsScalar>(std::make_unique<ReadsScalar>()), std::nullopt,
      nullptr, "tidelog"));
  (void)registration;
  Py_INCREF(function);
  bring_back = function;
}

}  // namespace tidelog
