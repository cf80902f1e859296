// What the session is asked about an op, made of the op's arguments.
#pragma once

#include <torch/csrc/DynamicTypes.h>

#include <algorithm>
#include <string>

#include "tensors.h"

namespace tidelog {

// What the session is asked about an op.
class Question {
 public:
  explicit Question(uint64_t seed) { parts_.push_back(checked(PyLong_FromUnsignedLongLong(seed))); }

  // Adds a tensor that the op uses; false: the session knows nothing like it.
  bool add(const Block& block, const at::Tensor& tensor, bool writes) {
    if (!is_plain(tensor)) return false;
    const c10::Storage& storage = tensor.storage();
    if (has_update(block, *storage.unsafeGetStorageImpl())) return false;
    add_shape(tensor);
    int64_t number = number_of(block, storage, writes);
    if (number < 0) return true;  // not ours to move
    auto place = std::find(numbers_.begin(), numbers_.end(), number);
    aliasing_.push_back(place - numbers_.begin());
    if (place == numbers_.end()) {
      numbers_.push_back(number);
      uses_.push_back(static_cast<uint32_t>(number));
    }
    if (writes) uses_[aliasing_.back()] |= MODIFIES;
    return true;
  }

  // Adds an argument's whole numbers: sizes and offsets, on which the size of a result may depend.
  void add_numbers(const c10::IValue& value) {
    auto add = [&](int64_t each) { numbers_seen_ = (numbers_seen_ ^ static_cast<uint64_t>(each)) * 0x9E3779B97F4A7C15ull; };
    if (value.isInt()) add(value.toInt());
    if (value.isBool()) add(value.toBool());
    if (value.isIntList())
      for (int64_t each : value.toIntVector()) add(each);
  }

  // As `_fingerprint` in `_hook.py`.
  uint64_t fingerprint() const {
    Held whole = checked(PyTuple_New(parts_.size() + aliasing_.size()));
    size_t place = 0;
    for (const Held& part : parts_) PyTuple_SET_ITEM(whole.get(), place++, borrowed(part.get()).release());
    for (int64_t alias : aliasing_)
      PyTuple_SET_ITEM(whole.get(), place++, checked(PyLong_FromLongLong(alias)).release());
    return static_cast<uint64_t>(PyObject_Hash(whole.get()));
  }

  // What the bytes of the op's results are remembered by.
  uint64_t key(uint64_t fingerprint) const { return fingerprint ^ numbers_seen_ * 0xD6E8FEB86659FD93ull; }

  const std::vector<uint32_t>& uses() const { return uses_; }

  // What the op uses does not matter to it: it only looks at sizes.
  void leave_out_uses() { uses_.clear(); }

  // The same as Python has it: number -> 0 or MODIFIES.
  Held uses_in_python() const {
    Held dict = checked(PyDict_New());
    for (uint32_t use : uses_)
      checked(PyDict_SetItem(dict.get(), checked(PyLong_FromUnsignedLong(use & ~MODIFIES)).get(),
                             checked(PyLong_FromUnsignedLong(use & MODIFIES)).get()));
    return dict;
  }

 private:
  void add_shape(const at::Tensor& tensor) {
    Held shape = checked(PyTuple_New(tensor.dim()));
    for (int64_t axis = 0; axis < tensor.dim(); ++axis)
      PyTuple_SET_ITEM(shape.get(), axis, checked(PyLong_FromLongLong(tensor.size(axis))).release());
    parts_.push_back(std::move(shape));
    parts_.push_back(borrowed(reinterpret_cast<PyObject*>(torch::getTHPDtype(tensor.scalar_type()))));
  }

  // The session's number for a storage, below zero: it has none. What is written differs from its copy from here on.
  static int64_t number_of(const Block& block, const c10::Storage& storage, bool writes) {
    if (const Unmet* entry = UnmetList::of(*storage.unsafeGetStorageImpl()); entry != nullptr && entry->number >= 0)
      return entry->number;
    PyObject* ledger = block.ledger.get();
    Held object = checked(THPStorage_Wrap(storage));
    Held record = record_in(object.get());
    if (record.get() == nullptr || attribute(record.get(), names().ledger).get() != ledger)
      record = call(ledger, names().record_of, object.get());
    if (record.get() == Py_None) return -1;
    if (writes && number(record.get(), names().state) == CLEAN) call(ledger, names().modifies, record.get());
    Held id = attribute(record.get(), names().id);
    return number_in((id.get() != Py_None ? std::move(id) : call(ledger, names().number_of, record.get())).get());
  }

  std::vector<Held> parts_;        // of the fingerprint
  std::vector<int64_t> aliasing_;  // which storage each tensor has
  std::vector<int64_t> numbers_;   // of storages
  std::vector<uint32_t> uses_;     // of the session's call
  uint64_t numbers_seen_ = 0;      // a hash of the op's whole numbers
};

}  // namespace tidelog
