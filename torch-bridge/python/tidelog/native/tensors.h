// The tensors of an op.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include "block.h"

namespace tidelog {

using torch::jit::Stack;

// Calls `visit` with each tensor of a value; false: it holds something else that has storages, or `visit`
// has said false.
template <class Visit>
bool each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    // A number of Python's, as an op of tensors gets it, is no tensor in Python either.
    return !tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number() || visit(tensor);
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& item : value.toListRef())
      if (!each_tensor(item, visit)) return false;
    return true;
  }
  return !value.isStorage() && !value.isObject() && !value.isTuple() && !value.isGenericDict();
}

// The same for an argument or a result of a launch, as Python has it. A tuple is of numbers.
template <class Visit>
bool each_tensor(PyObject* value, const Visit& visit) {
  if (THPVariable_Check(value)) return visit(THPVariable_Unpack(value));
  if (PyTuple_CheckExact(value)) {
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(value); ++place)
      if (!PyLong_CheckExact(PyTuple_GET_ITEM(value, place))) return false;
    return true;
  }
  return PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyBool_Check(value) || THPDtype_Check(value);
}

// Whether a tensor is no more than its storage: no subclass with a dispatch of its own, not sparse.
bool is_plain(const at::Tensor& tensor) {
  return tensor.has_storage() && !tensor.key_set().has(DispatchKey::Python) && !tensor.is_nested();
}

// Whether a tensor only stands for one: a fake one is such a one beneath its own dispatch, whatever device it names.
inline bool has_no_bytes(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  return tensor.unsafeGetTensorImpl()->unsafe_storage().device_type() == c10::DeviceType::Meta;
}

// The tensors of an op's arguments, or of its results. Each is alive as long as those are.
class Tensors {
 public:
  Tensors() = default;

  // The last `count` values of a stack.
  Tensors(const Stack& stack, size_t count) {
    for (size_t left = count; left != 0; --left) add(stack[stack.size() - left]);
  }

  // Values as C++ has them, which know their own `each_tensor`.
  template <class... Values>
  explicit Tensors(const std::tuple<const Values&...>& values) {
    std::apply([&](const auto&... each) { (add(each), ...); }, values);
  }

  // The same of a launch.
  explicit Tensors(c10::ArrayRef<PyObject*> values) {
    for (PyObject* each : values) add(each);
  }

  // Calls `visit` with each, and the position of the value that it is or is in; false: there is something else that has
  // storages, or `visit` has said false.
  template <class Visit>
  bool each(const Visit& visit) const {
    return is_all_ &&
           std::all_of(found_.begin(), found_.end(), [&](const auto& each) { return visit(each.first, *each.second); });
  }

  // Whether one of them has no bytes.
  bool have_meta() const {
    return std::any_of(found_.begin(), found_.end(), [](const auto& each) { return has_no_bytes(*each.second); });
  }

  // Whether the last has the shape of a product of the two before it, so that an op that writes the product there does
  // not resize it.
  bool are_of_product() const {
    if (!is_all_ || found_.size() < 3) return false;
    const auto* last = found_.end();
    const at::Tensor &left = *last[-3].second, &right = *last[-2].second, &product = *last[-1].second;
    for (const at::Tensor* each : {&left, &right, &product})
      if (!is_plain(*each) || each->dim() < 2 || each->dim() != product.dim()) return false;
    return product.sizes().slice(0, product.dim() - 1) == left.sizes().slice(0, left.dim() - 1) &&
           product.size(-1) == right.size(-1);
  }

 private:
  template <class Value>
  void add(const Value& value) {
    is_all_ &= each_tensor(value, [&](const at::Tensor& tensor) {
      found_.emplace_back(position_, &tensor);
      return true;
    });
    ++position_;
  }

  c10::SmallVector<std::pair<size_t, const at::Tensor*>, 4> found_;
  size_t position_ = 0;
  bool is_all_ = true;
};

}  // namespace tidelog
