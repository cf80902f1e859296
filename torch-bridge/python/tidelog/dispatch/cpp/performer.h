// What a session asks for, done from here: what `Performer` in `_performer.py` does, where that is usual. It is done in
// the same order and by the same marks of the ledger, so that Python can go on from any request.
#pragma once

#include <c10/core/CPUAllocator.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/Storage.h>

#include "ledger.h"

namespace tidelog {

// `Request`.
constexpr uint32_t EVICT = 1, RELEASE = 2, ALLOCATE = 3, SETTLE = 4;

// `tide_action`.
struct Action {
  uint64_t sequence, size;
  uint32_t kind, storage;
};

// As `SwapMover`, for torch of this version.
template <class Impl>
class Swap {
 public:
  static constexpr bool is_there = requires(Impl& storage) {
    storage.clear_data_ptr_access_error_msg_();
    storage.swap_data_ptr(storage);
  };

  // It has a size, and no memory; whoever touches it meets the message.
  static void take(Impl& storage, std::optional<std::string> message) {
    c10::Storage empty(c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(nullptr, c10::DeviceType::CPU));
    swap(storage, empty, std::move(message));
  }

  // It gets memory again, whose address is returned; the guard stays up.
  static uint64_t give(Impl& storage, uint64_t size, std::optional<std::string> message) {
    auto* allocator = c10::GetDefaultCPUAllocator();
    c10::Storage fresh(c10::Storage::use_byte_size_t(), static_cast<int64_t>(size), allocator, /*resizable=*/true);
    auto address = reinterpret_cast<uint64_t>(fresh.mutable_data());
    swap(storage, fresh, std::move(message));
    return address;
  }

  static void open_to_reads(Impl& storage) {
    if constexpr (is_there) storage.clear_data_ptr_access_error_msg_();
  }

 private:
  static void swap(Impl& storage, const c10::Storage& other, std::optional<std::string> message) {
    if constexpr (is_there) {
      storage.clear_data_ptr_access_error_msg_();
      storage.swap_data_ptr(*other.unsafeGetStorageImpl());
      if (message) storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
    }
  }
};

using Mover = Swap<c10::StorageImpl>;

// All is called with Python's lock held.
class Performer {
 public:
  Performer(Held performer, const Ledger& ledger)
      : performer_(std::move(performer)),
        ledger_(ledger),
        heap_(attribute(performer_.get(), names()._heap)),
        async_uses_(attribute(attribute(performer_.get(), names()._async_uses).get(), names()._running)),
        async_uses_elsewhere_(attribute(attribute(performer_.get(), names()._async_uses).get(), names()._elsewhere)),
        in_flight_(attribute(performer_.get(), names()._in_flight)),
        swaps_(Mover::is_there && is_true(performer_.get(), names().swaps)) {}

  // Does what is asked for, and says at which address. False: Python has to do it, from its beginning.
  bool perform(const Action& action, uint64_t& address) const {
    address = 0;
    if (!swaps_) return false;
    Held number = checked(PyLong_FromUnsignedLong(action.storage));
    Held record = ledger_.record_at(number.get());
    if (record.get() == nullptr) return true;
    Held storage = checked(PyObject_CallNoArgs(record.get()));
    if (storage.get() == Py_None) return true;
    if (attribute(storage.get(), names()._tide_update).get() != Py_None) return false;
    const Asked asked{record.get(), storage.get(), number.get(), action.size, impl_of(storage.get())};
    switch (action.kind) {
      case EVICT:
        return evict(asked, address);
      case RELEASE:
        return release(asked);
      case ALLOCATE:
        return allocate(asked, address);
      case SETTLE:
        return settle(asked);
    }
    return false;
  }

  // Whether ops that have returned use storages still: then only Python knows how to wait.
  bool has_async_uses() const { return size_of(async_uses_.get()) + size_of(async_uses_elsewhere_.get()) != 0; }

  // How many references to the object of a storage are held in Python because a device or a copy may touch its memory:
  // one for all of it, and one for each of its parts.
  Py_ssize_t references_in_flight(const c10::StorageImpl& storage) const {
    PyObject* object = storage.pyobj_slot()->load_pyobj();
    Held record = attribute(object, names()._tide);
    if (record.get() == Py_None) return 0;
    Held number = attribute(record.get(), names().id), parted = attribute(record.get(), names().parted);
    bool moves_whole = number.get() != Py_None && in_flight(number.get()) == object;
    return moves_whole + (parted.get() == Py_None ? 0 : moving_parts(parted.get()));
  }

  // Goes on in Python, from a status that is not `READY`.
  void drive(int32_t status) const { call(performer_.get(), names().drive, checked(PyLong_FromLong(status)).get()); }

 private:
  struct Asked {
    PyObject *record, *storage, *number;
    uint64_t size;
    c10::StorageImpl& impl;
  };

  static c10::StorageImpl& impl_of(PyObject* storage) { return *THPStorage_Unpack(storage).unsafeGetStorageImpl(); }

  bool evict(const Asked& asked, uint64_t& address) const {
    int64_t before = ledger_.state(asked.record);
    // First the mark, then the look, as there.
    mark(asked, LEAVING);
    bool is_movable = call(ledger_.get(), names().movable, asked.storage).get() == Py_True;
    if (!is_movable || has_users(asked) || number(asked.record, names().pins) != 0 ||
        asked.impl.nbytes() != asked.size) {
      mark(asked, before);
      return false;
    }
    begins(asked);
    address = reinterpret_cast<uint64_t>(asked.impl.mutable_data());
    return true;
  }

  bool release(const Asked& asked) const {
    PyObject* moving = in_flight(asked.number);
    if (moving == nullptr) return true;
    if (moving != asked.storage) return false;
    mark(asked, OUT);
    if (has_users(asked)) return false;
    Mover::take(asked.impl, guard(asked));
    ended(asked);
    return true;
  }

  bool allocate(const Asked& asked, uint64_t& address) const {
    try {
      address = Mover::give(asked.impl, asked.size, guard(asked));
    } catch (const c10::OutOfMemoryError&) {
      return false;  // what is kept for later makes way first
    }
    mark(asked, COMING);
    begins(asked);
    call(heap_.get(), names().allocated, checked(PyLong_FromUnsignedLongLong(asked.size)).get());
    return true;
  }

  bool settle(const Asked& asked) const {
    PyObject* moving = in_flight(asked.number);
    if (moving != nullptr && moving != asked.storage) return false;
    if ((ledger_.state(asked.record) & AWAY) != 0) Mover::open_to_reads(asked.impl);
    mark(asked, asked.size != 0 ? CLEAN : SETTLED);
    if (moving != nullptr) ended(asked);
    return true;
  }

  void mark(const Asked& asked, int64_t state) const { ledger_.mark(asked.record, state); }

  // Whether other threads use it right now.
  static bool has_users(const Asked& asked) { return number(asked.record, names().loans) != 0; }

  static std::optional<std::string> guard(const Asked& asked) {
    Held text = call(asked.record, names().guard);
    if (text.get() == Py_None) return std::nullopt;
    const char* message = PyUnicode_AsUTF8(text.get());
    if (message == nullptr) throw_python_error();
    return message;
  }

  static Py_ssize_t moving_parts(PyObject* parted) { return size_of(attribute(parted, names().moving).get()); }

  PyObject* in_flight(PyObject* number) const {
    PyObject* found = PyDict_GetItemWithError(in_flight_.get(), number);
    if (found == nullptr && PyErr_Occurred()) throw_python_error();
    return found;
  }
  void begins(const Asked& asked) const { checked(PyDict_SetItem(in_flight_.get(), asked.number, asked.storage)); }
  void ended(const Asked& asked) const { checked(PyDict_DelItem(in_flight_.get(), asked.number)); }

  const Held performer_;
  const Ledger& ledger_;
  const Held heap_;
  const Held async_uses_, async_uses_elsewhere_;  // never replaced
  const Held in_flight_;  // a dict
  const bool swaps_;  // whether the block moves by swaps of pointers
};

}  // namespace tidelog
