// Slices: storages in the memory of another one, as `storage[a:b]` makes them. safetensors, and torch.load with mmap,
// make one for each tensor of a file that they map.
//
// A slice of a private mapping may get memory of its own, and lose it, once nobody but slices has the mapping, and no
// other slice overlaps with it: then nobody can tell. A slice has a reference to the storage that it is a part of, so
// the number of references tells whether anybody else has one.
#pragma once

#include <ATen/MapAllocator.h>
#include <c10/core/StorageImpl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "python.h"

namespace tidelog {

// The object that a tensor or a storage has in Python lives on for its sake. Torch up to 2.9 has the one own the other;
// later ones have a reference each way, as long as C++ has another.
template <class Slot>
concept OwnsObject = requires(Slot slot) { slot.owns_pyobj(); };

// The references that C++ has to the object in Python of one that has it.
template <class Impl>
size_t references_to_object(Impl& impl) {
  auto& slot = *impl.pyobj_slot();
  if constexpr (OwnsObject<decltype(slot)>) {
    return slot.owns_pyobj() ? 1 : 0;
  } else {
    return c10::raw::intrusive_ptr::use_count(&impl) > 1 ? 1 : 0;
  }
}

class Slices {
 public:
  // Learns from an example how torch makes them.
  static void learn(const c10::StorageImpl& example) {
    deleter_ = const_cast<c10::StorageImpl&>(example)._mutable_data_ptr_no_checks().get_deleter();
  }

  static bool is_slice(const c10::DataPtr& memory) { return deleter_ != nullptr && memory.get_deleter() == deleter_; }

  // The storage in whose memory it is; null: it is no slice.
  static c10::StorageImpl* whole_of(const c10::DataPtr& memory) {
    return is_slice(memory) ? static_cast<c10::StorageImpl*>(memory.get_context()) : nullptr;
  }

  // Returns whether the storage is a file that only this process sees changes of.
  static bool is_private_mapping(const c10::StorageImpl& storage) {
    auto* mapped = at::MapAllocator::fromDataPtr(const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks());
    return mapped != nullptr && (mapped->flags() & (at::ALLOCATOR_MAPPED_SHARED | at::ALLOCATOR_MAPPED_SHAREDMEM)) == 0;
  }

  // The pages that are in this memory alone go: nobody reads them again before they are written.
  static void drop_pages(const c10::DataPtr& memory, size_t size) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    auto address = reinterpret_cast<uintptr_t>(memory.get());
    uintptr_t begin = (address + page - 1) / page * page, end = (address + size) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }

  // -- those that are known, by what they are parts of: the caller has a lock -------------------------------

  void add(const c10::DataPtr& memory, size_t size) {
    Parts& parts = by_whole_[whole_of(memory)];
    auto begin = reinterpret_cast<uintptr_t>(memory.get());
    auto here = parts.ends.emplace(begin, begin + size);
    parts.overlap |= overlaps_before(parts.ends, here) || overlaps_before(parts.ends, std::next(here));
  }

  void remove(const c10::DataPtr& memory, size_t size) {
    auto whole = by_whole_.find(whole_of(memory));
    if (whole == by_whole_.end()) return;
    Parts& parts = whole->second;
    auto begin = reinterpret_cast<uintptr_t>(memory.get());
    auto [first, last] = parts.ends.equal_range(begin);
    auto found = std::find_if(first, last, [&](const auto& each) { return each.second == begin + size; });
    if (found != last) parts.ends.erase(found);
    if (parts.ends.empty()) return void(by_whole_.erase(whole));
    if (!parts.overlap) return;
    parts.overlap = false;
    for (auto each = parts.ends.begin(); each != parts.ends.end(); ++each)
      parts.overlap |= overlaps_before(parts.ends, each);
  }

  // Returns whether no other storage has this memory, which is a slice's. With Python's lock held.
  bool is_alone(const c10::DataPtr& memory) const {
    auto found = by_whole_.find(whole_of(memory));
    if (found == by_whole_.end() || found->second.overlap) return false;
    return is_private_mapping(*found->first) && have_all_of(*found->first, found->second.ends.size());
  }

 private:
  using Ends = std::multimap<uintptr_t, uintptr_t>;  // by the addresses where they begin

  struct Parts {
    Ends ends;
    bool overlap = false;  // whether two of them do
  };

  // Returns whether a slice begins before the one in front of it ends. As long as none does, neighbours tell.
  static bool overlaps_before(const Ends& ends, Ends::const_iterator here) {
    return here != ends.begin() && here != ends.end() && std::prev(here)->second > here->first;
  }

  // Returns whether so many slices are all that has the storage, beside an object in Python that lives only for its
  // sake.
  static bool have_all_of(const c10::StorageImpl& whole, size_t slices) {
    auto& storage = const_cast<c10::StorageImpl&>(whole);
    size_t references = c10::raw::intrusive_ptr::use_count(&storage);
    PyObject* object = whole.pyobj_slot()->load_pyobj();
    if (object == nullptr) return references == slices;
    if (Py_REFCNT(object) != 1 || references_to_object(storage) != 1) return false;
    return references == slices + (OwnsObject<decltype(*storage.pyobj_slot())> ? 0 : 1);
  }

  static inline c10::DeleterFnPtr deleter_ = nullptr;

  std::unordered_map<const c10::StorageImpl*, Parts> by_whole_;
};

}  // namespace tidelog
