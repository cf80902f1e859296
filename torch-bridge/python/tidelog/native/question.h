// Question to the session about an op, made of the op's arguments.
#pragma once

#include <algorithm>
#include <bit>

#include "tensors.h"

namespace tidelog {

// A hash over numbers, in their order.
class Hash {
 public:
  explicit Hash(uint64_t seed) : hash_(seed * 14029467366897019727u) {}
  void add(uint64_t number) { hash_ = std::rotl(hash_ + number * 14029467366897019727u, 31) * 11400714785074694791u; }
  uint64_t value() const { return hash_ ^ hash_ >> 32; }

 private:
  uint64_t hash_;
};

// Calls `visit` with each whole number of a value.
template <class Visit>
void each_number(const c10::IValue& value, const Visit& visit) {
  if (value.isInt()) visit(value.toInt());
  if (value.isBool()) visit(value.toBool());
  if (value.isIntList())
    for (int64_t each : value.toIntVector()) visit(each);
}

// Converts numbers as Python has them. One that does not fit is left out.
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
  // Takes the numbers of the last `count` values of a stack.
  Numbers(const Stack& stack, size_t count) {
    for (size_t left = count; left != 0; --left) add(stack[stack.size() - left]);
  }

  // Takes the numbers of values as C++ has them, which know their own `each_number` and `is_list`.
  template <class... Values>
  explicit Numbers(const std::tuple<const Values&...>& values) {
    std::apply([&](const auto&... each) { (add(each), ...); }, values);
  }

  // Takes the numbers of a launch.
  explicit Numbers(c10::ArrayRef<PyObject*> values) {
    for (PyObject* each : values) add(each);
  }

  uint64_t hash() const {
    Hash hash(all_.size());
    for (int64_t each : all_) hash.add(static_cast<uint64_t>(each));
    return hash.value();
  }

  // Returns whether the second argument is a list of the same numbers.
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

// Question to the session about an op. Its fingerprint is made of the op, of shapes and types, and of which tensors
// share memory.
class Question {
 public:
  // `seed` stands for the op.
  Question(Ledger& ledger, uint64_t seed) : ledger_(ledger), fingerprint_(seed) {}

  // Adds what the op uses. What it writes differs from its copy from here on.
  void add(const Holder& holder, bool writes) {
    if (holder.tensor != nullptr) add_shape(*holder.tensor);
    if (holder.storage == nullptr) return;
    Record* record = writes ? ledger_.record_of_written(*holder.storage) : ledger_.record_of(*holder.storage);
    if (record == nullptr) return;  // not ours to move
    if (writes) {
      ledger_.note_write(*holder.storage);
      ledger_.modifies(*record);
      written_.push_back(record);
    }
    records_.push_back(RecordPtr::reclaim_copy(record));
    auto number = static_cast<uint32_t>(ledger_.number_of(*record));
    auto* place =
        std::find_if(uses_.begin(), uses_.end(), [&](uint32_t use) { return Step::storage_in(use) == number; });
    fingerprint_.add(place - uses_.begin());
    if (place == uses_.end()) {
      uses_.push_back(number);
      place = uses_.end() - 1;
      bytes_ += record->size;
    }
    if (writes) *place |= MODIFIES;
  }

  uint64_t fingerprint() const { return fingerprint_.value(); }

  // Returns the key of the sizes of the op's results.
  uint64_t key(const Numbers& numbers) const { return fingerprint() ^ numbers.hash() * 0xD6E8FEB86659FD93ull; }

  // Returns the records of storages that the op uses, some more than once. They live, whatever Python does until it is
  // launched.
  const c10::SmallVector<RecordPtr, 4>& records() const { return records_; }

  // The op is about to be launched: what it writes may be copied out since it was asked about.
  void end_reading() const {
    for (Record* each : written_) ledger_.end_reading(*each);
  }

  // Leaves out uses for an op that only looks at sizes.
  void leave_out_uses() { uses_.clear(); }

  const Uses& uses() const { return uses_; }
  int64_t bytes() const { return bytes_; }  // of the storages
  // Returns whether one of them is not in memory now.
  bool is_away() const {
    return std::any_of(records_.begin(), records_.end(), [](const RecordPtr& each) { return each->is_away(); });
  }

 private:
  void add_shape(const at::Tensor& tensor) {
    if (tensor.is_nested()) {
      fingerprint_.add(tensor.numel());
    } else {
      fingerprint_.add(tensor.dim());
      for (int64_t size : tensor.sizes()) fingerprint_.add(size);
    }
    fingerprint_.add(static_cast<uint64_t>(tensor.scalar_type()));
  }

  Ledger& ledger_;
  Hash fingerprint_;
  c10::SmallVector<RecordPtr, 4> records_;
  c10::SmallVector<Record*, 2> written_;  // of these
  Uses uses_;
  int64_t bytes_ = 0;
};

}  // namespace tidelog
