// What the session is asked about an op, made of the op's arguments.
#pragma once

#include <torch/csrc/DynamicTypes.h>

#include <algorithm>
#include <bit>
#include <string>

#include "tensors.h"

namespace tidelog {

uint64_t hash_of(PyObject* object) {
  Py_hash_t hash = PyObject_Hash(object);
  if (hash == -1) throw_python_error();
  return static_cast<uint64_t>(hash);
}

// Of a whole number that is not below zero, and below 2^61 - 1.
uint64_t hash_of(int64_t number) { return static_cast<uint64_t>(number); }

// The hash of a tuple, as Python has it since 3.8, without the tuple.
class TupleHash {
 public:
  void add(uint64_t hash) {
    hash_ = std::rotl(hash_ + hash * 14029467366897019727u, 31) * 11400714785074694791u;
    ++length_;
  }

  uint64_t value() const {
    uint64_t value = hash_ + (length_ ^ START ^ 3527539);
    return value == UINT64_MAX ? 1546275796 : value;
  }

 private:
  static constexpr uint64_t START = 2870177450012600261u;
  uint64_t hash_ = START, length_ = 0;
};

// Whether this Python's hash is that.
bool hashes_tuples_as_known() {
  TupleHash known;
  for (int64_t each : {1, 2, 3}) known.add(hash_of(each));
  return hash_of(checked(Py_BuildValue("(iii)", 1, 2, 3)).get()) == known.value();
}

// Calls `visit` with each whole number of a value.
template <class Visit>
void each_number(const c10::IValue& value, const Visit& visit) {
  if (value.isInt()) visit(value.toInt());
  if (value.isBool()) visit(value.toBool());
  if (value.isIntList())
    for (int64_t each : value.toIntVector()) visit(each);
}

// As Python has them. One that does not fit is left out.
template <class Visit>
void each_number(PyObject* value, const Visit& visit) {
  if (PyTuple_CheckExact(value))
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(value); ++place)
      each_number(PyTuple_GET_ITEM(value, place), visit);
  if (!PyLong_CheckExact(value)) return;
  int overflow = 0;
  int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (!overflow) visit(number);
}

bool is_list(const c10::IValue& value) { return value.isIntList(); }

bool is_list(PyObject* value) { return PyTuple_CheckExact(value); }

template <class Value>
bool is_list(const c10::ArrayRef<Value>&) {
  return true;
}

template <class Value>
bool is_list(const Value&) {
  return false;
}

// The whole numbers of an op's arguments: sizes and offsets, on which the size of a result may depend.
class Numbers {
 public:
  // Of the last `count` values of a stack.
  Numbers(const Stack& stack, size_t count) {
    for (size_t left = count; left != 0; --left) add(stack[stack.size() - left]);
  }

  // Of values as C++ has them, which know their own `each_number` and `is_list`.
  template <class... Values>
  explicit Numbers(const std::tuple<const Values&...>& values) {
    std::apply([&](const auto&... each) { (add(each), ...); }, values);
  }

  // The same of a launch.
  explicit Numbers(c10::ArrayRef<PyObject*> values) {
    for (PyObject* each : values) add(each);
  }

  uint64_t hash() const {
    uint64_t hash = 0;
    for (int64_t each : all_) hash = (hash ^ static_cast<uint64_t>(each)) * 0x9E3779B97F4A7C15ull;
    return hash;
  }

  // Whether the second argument is a list of the same numbers.
  bool has_second(at::IntArrayRef list) const {
    return has_second_ && at::IntArrayRef(all_).slice(second_begin_, second_end_ - second_begin_) == list;
  }

 private:
  template <class Value>
  void add(const Value& value) {
    size_t begin = all_.size();
    each_number(value, [&](int64_t each) { all_.push_back(each); });
    if (position_++ != 1 || !is_list(value)) return;
    has_second_ = true;
    second_begin_ = begin;
    second_end_ = all_.size();
  }

  c10::SmallVector<int64_t, 8> all_;
  size_t position_ = 0, second_begin_ = 0, second_end_ = 0;
  bool has_second_ = false;
};

// What the session is asked about an op.
class Question {
 public:
  explicit Question(uint64_t seed) { parts_.push_back(seed); }

  // Adds a tensor that the op uses; false: the session knows nothing like it.
  bool add(const Block& block, const at::Tensor& tensor, bool writes) {
    if (!is_plain(tensor)) return false;
    const c10::Storage& storage = tensor.storage();
    if (has_update(block, *storage.unsafeGetStorageImpl())) return false;
    add_shape(tensor);
    Record* record = record_of(block, storage, writes);
    if (record == nullptr) return true;  // not ours to move
    records_.push_back(record);
    int64_t number = block.ledger.number_of(*record);
    auto place = std::find(numbers_.begin(), numbers_.end(), number);
    aliasing_.push_back(place - numbers_.begin());
    if (place == numbers_.end()) {
      numbers_.push_back(number);
      uses_.push_back(static_cast<uint32_t>(number));
    }
    if (writes) uses_[aliasing_.back()] |= MODIFIES;
    return true;
  }

  // As `_fingerprint` in `_hook.py`.
  uint64_t fingerprint() const {
    TupleHash whole;
    for (uint64_t part : parts_) whole.add(part);
    for (int64_t alias : aliasing_) whole.add(hash_of(alias));
    return whole.value();
  }

  // What the bytes of the op's results are remembered by.
  static uint64_t key(uint64_t fingerprint, const Numbers& numbers) {
    return fingerprint ^ numbers.hash() * 0xD6E8FEB86659FD93ull;
  }

  const std::vector<uint32_t>& uses() const { return uses_; }

  // Of the storages that the op uses.
  const c10::SmallVector<Record*, 4>& records() const { return records_; }

  // What the op uses does not matter to it: it only looks at sizes.
  void leave_out_uses() { uses_.clear(); }

 private:
  void add_shape(const at::Tensor& tensor) {
    TupleHash shape;
    for (int64_t size : tensor.sizes()) shape.add(hash_of(size));
    parts_.push_back(shape.value());
    parts_.push_back(hash_of(reinterpret_cast<PyObject*>(torch::getTHPDtype(tensor.scalar_type()))));
  }

  // A storage's record; null: it has none. What is written differs from its copy from here on.
  static Record* record_of(const Block& block, const c10::Storage& storage, bool writes) {
    Ledger& ledger = block.ledger;
    c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
    Record* record = writes ? ledger.record_of_written(impl) : ledger.record_of(impl);
    if (record != nullptr && writes) ledger.modifies(*record);
    return record;
  }

  std::vector<uint64_t> parts_;    // hashes of those of the fingerprint
  std::vector<int64_t> aliasing_;  // which storage each tensor has
  std::vector<int64_t> numbers_;   // of storages
  c10::SmallVector<Record*, 4> records_;
  std::vector<uint32_t> uses_;     // of the session's call
};

}  // namespace tidelog
