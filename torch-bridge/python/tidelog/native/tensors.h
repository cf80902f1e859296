// The storages of an op: those of its tensors, and those that it is given itself.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <list>

#include "block.h"

namespace tidelog {

using torch::jit::Stack;

// Owner of a storage among an op's arguments or results.
struct Holder {
  size_t position;            // of the argument that it is, or is in
  c10::StorageImpl* storage;  // null: a tensor that has none, of which only the shape counts
  const at::Tensor* tensor;   // null: the storage was given itself
};

// Calls `visit` with each tensor and each storage of a value. Of what else it holds there is no storage to look for.
template <class Visit>
void each_holder(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    // A number of Python's, as an op of tensors gets it, is no tensor in Python either.
    if (tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) visit(tensor);
  } else if (value.isStorage()) {
    visit(value.toStorage());
  } else if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    for (const c10::IValue& item : value.toListRef()) each_holder(item, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) each_holder(item, visit);
  }
}

// Visits the storages of an argument or a result of a launch, as Python has it.
template <class Visit>
void each_holder(PyObject* value, const Visit& visit) {
  if (THPVariable_Check(value)) {
    visit(THPVariable_Unpack(value));
  } else if (THPStorage_Check(value)) {
    visit(THPStorage_Unpack(value));
  } else if (PyTuple_Check(value) || PyList_Check(value)) {
    for (Py_ssize_t place = 0; place < PySequence_Fast_GET_SIZE(value); ++place)
      each_holder(PySequence_Fast_GET_ITEM(value, place), visit);
  }
}

// Returns whether a tensor only stands for one: a fake one is such a one beneath its own dispatch, whatever device it
// names.
inline bool has_no_bytes(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  // A storage's device is written while it loses its memory, and this is asked without Python's lock.
  if (!tensor.key_set().has(DispatchKey::Python)) return tensor.is_meta();
  return tensor.unsafeGetTensorImpl()->unsafe_storage().device_type() == c10::DeviceType::Meta;
}

// Returns whether a tensor only stands for others (DTensor does): its storage has a size, and never any memory. Its own
// dispatch makes ops on those others of it.
inline bool is_wrapper(const at::Tensor& tensor) {
  if (!tensor.key_set().has(DispatchKey::Python)) return false;
  const c10::StorageImpl& storage = *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return Records::of(storage) == nullptr && Records::memory_of(storage).get() == nullptr;
}

// A sparse tensor has no storage of its own; its components have. Opaque layouts stay where they are.
inline std::vector<at::Tensor> components_of(const at::Tensor& tensor) {
  At inside(Where::inside);
  c10::impl::ExcludeDispatchKeyGuard none_above(ABOVE);
  switch (tensor.layout()) {
    case c10::kSparse:
      return {tensor._indices(), tensor._values()};
    case c10::kSparseCsr:
    case c10::kSparseBsr:
      return {tensor.crow_indices(), tensor.col_indices(), tensor.values()};
    case c10::kSparseCsc:
    case c10::kSparseBsc:
      return {tensor.ccol_indices(), tensor.row_indices(), tensor.values()};
    default:
      return {};
  }
}

// Tensors of an op's arguments, or of its results. Each is alive as long as those are.
class Tensors {
 public:
  Tensors() = default;
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  // Takes the tensors of the last `count` values of a stack.
  Tensors(const Stack& stack, size_t count) {
    for (size_t left = count; left != 0; --left) add(stack[stack.size() - left]);
  }

  // Takes the tensors of values as C++ has them, which know their own `each_holder`.
  template <class... Values>
  explicit Tensors(const std::tuple<const Values&...>& values) {
    std::apply([&](const auto&... each) { (add(each), ...); }, values);
  }

  // Takes the tensors of a launch.
  explicit Tensors(c10::ArrayRef<PyObject*> values) {
    for (PyObject* each : values) add(each);
  }

  auto begin() const { return found_.begin(); }
  auto end() const { return found_.end(); }

  // Returns whether one of them has no bytes.
  bool have_meta() const {
    return std::any_of(begin(), end(), [](const Holder& each) { return each.tensor && has_no_bytes(*each.tensor); });
  }

  // Returns whether the last has the shape of a product of the two before it, so that an op that writes the product
  // there does not resize it.
  bool are_of_product() const {
    if (found_.size() < 3) return false;
    for (const Holder* each = end() - 3; each != end(); ++each)
      if (each->storage == nullptr || each->tensor == nullptr || each->tensor->is_nested() || each->tensor->dim() < 2 ||
          each->tensor->dim() != end()[-1].tensor->dim())
        return false;
    const at::Tensor &left = *end()[-3].tensor, &right = *end()[-2].tensor, &product = *end()[-1].tensor;
    return product.sizes().slice(0, product.dim() - 1) == left.sizes().slice(0, left.dim() - 1) &&
           product.size(-1) == right.size(-1);
  }

 private:
  template <class Value>
  void add(const Value& value) {
    each_holder(value, [&](const auto& holder) { add_holder(holder); });
    ++position_;
  }

  void add_holder(const at::Tensor& tensor) {
    if (tensor.has_storage()) {
      if (!is_wrapper(tensor))
        found_.push_back({position_, tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(), &tensor});
      return;
    }
    found_.push_back({position_, nullptr, &tensor});
    for (at::Tensor& each : components_of(tensor)) add_holder(components_.emplace_back(std::move(each)));
  }

  void add_holder(const c10::Storage& storage) {
    found_.push_back({position_, storage.unsafeGetStorageImpl(), nullptr});
  }

  c10::SmallVector<Holder, 4> found_;
  std::list<at::Tensor> components_;  // of sparse tensors
  size_t position_ = 0;
};

}  // namespace tidelog
