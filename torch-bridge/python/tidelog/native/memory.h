// Memory of storages: how one loses its memory and gets it back: by torch's own setters, on any device.
//
// The size of a storage that is out stays, so views go on working. Torch's access guard is set on it, so that a stray
// touch (another thread, a kernel that does not go through the dispatcher) is an error that names the tensor. Version
// counters stay as they are.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Storage.h>

#include <optional>
#include <string>
#include <utility>

#include "device_arena.h"

namespace tidelog {

// Private members of `Impl`, by explicit instantiation, which may name them ([temp.spec]/6): torch sets its guard since
// long, and lifts it by a function of its own since 2.12.
struct GuardFlag {
  using Type = bool c10::StorageImpl::*;
  friend Type member(GuardFlag);
};
struct WriteGuardFlag {
  using Type = bool c10::StorageImpl::*;
  friend Type member(WriteGuardFlag);
};
struct GuardRefresh {
  using Type = void (c10::StorageImpl::*)();
  friend Type member(GuardRefresh);
};
template <class Name, typename Name::Type pointer>
struct Private {
  friend typename Name::Type member(Name) { return pointer; }
};
template struct Private<GuardFlag, &c10::StorageImpl::throw_on_immutable_data_ptr_>;
template struct Private<WriteGuardFlag, &c10::StorageImpl::throw_on_mutable_data_ptr_>;
template struct Private<GuardRefresh, &c10::StorageImpl::refresh_has_data_ptr_check>;

// Torch's access guard of a storage. A template, as torch's functions differ from version to version.
template <class Impl>
struct AccessGuard {
  static void set(Impl& storage, std::string message) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));  // it releases nothing
  }

  static void set_against_writes(Impl& storage) { storage.set_throw_on_mutable_data_ptr(); }

  static void lift(Impl& storage) {
    storage.*member(WriteGuardFlag{}) = false;
    if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
      storage.clear_data_ptr_access_error_msg_();
    } else {
      storage.*member(GuardFlag{}) = false;
      (storage.*member(GuardRefresh{}))();
    }
  }
};

using Guard = AccessGuard<c10::StorageImpl>;
using Message = std::optional<std::string>;  // without one nothing is guarded; an empty one: against writes alone

inline void guard(c10::StorageImpl& storage, Message message) {
  if (!message) return;
  if (message->empty())
    Guard::set_against_writes(storage);
  else
    Guard::set(storage, std::move(*message));
}

// Takes the memory of a storage, which is returned, and keeps its size.
inline c10::DataPtr take(c10::StorageImpl& storage, Message message) {
  Guard::lift(storage);
  c10::DataPtr memory = storage.set_data_ptr(c10::DataPtr(nullptr, storage.device()));
  guard(storage, std::move(message));
  return memory;
}

// Returns whether memory is the host's, of torch's allocator as that was or as it is now.
inline bool is_of_host_allocator(const c10::DataPtr& memory) {
  c10::DeleterFnPtr deleter = memory.get_deleter();
  return deleter != nullptr && memory.get() == memory.get_context() &&
         (deleter == c10::GetDefaultCPUAllocator()->raw_deleter() || deleter == c10::GetCPUAllocator()->raw_deleter() ||
          DeviceArena::is_allocators(deleter));
}

// Memory that a storage may have, of the allocator that its device has now.
inline c10::DataPtr allocated(c10::StorageImpl& storage, size_t size) {
  c10::DeviceGuard device(storage.device());
  c10::Allocator* allocator = c10::GetAllocator(storage.device_type());
  if (storage.allocator() != nullptr) storage.set_allocator(allocator);
  return allocator->allocate(size);
}

// Gives memory to a storage, whose address is returned.
inline uint64_t give(c10::StorageImpl& storage, c10::DataPtr memory, size_t size, Message message) {
  auto address = reinterpret_cast<uint64_t>(memory.get());
  Guard::lift(storage);
  storage.set_data_ptr_noswap(std::move(memory));
  storage.set_nbytes(size);
  guard(storage, std::move(message));
  return address;
}

// The two have each other's memory from here on, with what goes with it.
inline void swap(c10::StorageImpl& storage, c10::StorageImpl& other, Message message) {
  Guard::lift(storage);
  Guard::lift(other);
  c10::DataPtr memory = storage.set_data_ptr(c10::DataPtr(nullptr, storage.device()));
  storage.set_data_ptr_noswap(other.set_data_ptr(std::move(memory)));
  size_t size = storage.nbytes();
  storage.set_nbytes(other.nbytes());
  other.set_nbytes(size);
  c10::Allocator *allocator = storage.allocator(), *others = other.allocator();
  bool resizable = storage.resizable(), is_other_resizable = other.resizable();
  storage.set_allocator(others);
  other.set_allocator(allocator);
  storage.set_resizable(is_other_resizable);
  other.set_resizable(resizable);
  guard(storage, std::move(message));
}

// One on the same device that has this size, and no memory.
inline c10::Storage without_memory(const c10::StorageImpl& like, size_t size) {
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(size),
                      c10::DataPtr(nullptr, like.device()));
}

}  // namespace tidelog
