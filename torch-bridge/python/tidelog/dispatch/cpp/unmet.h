// Storages that Python has not met. Most die before anybody asks for them: without an object in Python they cost a
// tenth. They are counted here, and get their records when Python looks at them. The session hears of them without
// that: of each that lives when it is asked about any.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <pthread.h>

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "python.h"

namespace tidelog {

// What an op made, for the record that a storage may get.
struct Birth {
  PyObject* func;       // borrowed: of a kernel, which lives for good
  PyObject* name;       // the same
  int64_t index, slot;  // of the op in its step, below zero while none is followed; and among its results
};

using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

// A storage that Python has not met. This hangs on the storage as the owner of its memory, so that it learns when the
// memory goes.
struct Unmet {
  c10::DataPtr memory;
  Weak storage;
  int64_t size;
  Birth birth;
  int64_t number = -1;  // by which the session knows it; below zero: it does not
  std::atomic<bool> is_listed{false};
  Unmet *previous = nullptr, *next = nullptr;  // among all that are listed
};

// Also of a storage that is out, where torch's own look at it raises the guard's error.
const c10::DataPtr& memory_of(const c10::StorageImpl& storage) {
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
}

// All of them, in the order in which they were made, and their bytes. Ops of several threads make them, and
// whoever lets go of a storage ends one, with Python's lock or without.
class UnmetList {
 public:
  // Whether the storage's memory is plain memory of an allocator's, which this can stand for.
  static bool can_be(const c10::StorageImpl& storage) {
    const c10::DataPtr& memory = memory_of(storage);
    return storage.resizable() && memory.get() != nullptr && memory.get() == memory.get_context();
  }

  // The same of what it stands for already.
  static bool is_or_can_be(const c10::StorageImpl& storage) {
    return memory_of(storage).get_deleter() == &ended || can_be(storage);
  }

  void add(const c10::Storage& storage, const Birth& birth) {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    auto alive = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl);
    auto* entry = new Unmet{{}, Weak(alive), static_cast<int64_t>(impl->nbytes()), birth};
    const c10::DataPtr& memory = memory_of(*impl);
    c10::DataPtr owned(memory.get(), entry, &ended, memory.device());
    entry->memory = impl->set_data_ptr(std::move(owned));
    std::lock_guard lock(mutex_);
    entry->previous = all_.previous;
    entry->next = &all_;
    all_.previous->next = entry;
    all_.previous = entry;
    entry->is_listed = true;
    bytes_ += entry->size;
    ++untold_;
  }

  // Of a storage that Python has not met; null: it is none.
  static Unmet* of(const c10::StorageImpl& storage) {
    const c10::DataPtr& memory = memory_of(storage);
    if (memory.get_deleter() != &ended) return nullptr;
    auto* entry = static_cast<Unmet*>(memory.get_context());
    return entry->is_listed.load(std::memory_order_relaxed) ? entry : nullptr;
  }

  // Takes one off the list: Python has met it.
  void meet(Unmet* entry) {
    std::lock_guard lock(mutex_);
    unlist(entry);
  }

  // Its memory goes.
  void end(Unmet* entry) {
    std::lock_guard lock(mutex_);
    died(entry);
  }

  // The first storage of the list that is alive; none: null.
  c10::Storage first() {
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> passed;  // let go of without the lock: memory may go then
    std::lock_guard lock(mutex_);
    for (Unmet *each = all_.next, *next = each->next; each != &all_; each = next, next = each->next)
      if (auto storage = storage_of(each, passed)) return c10::Storage(std::move(storage));
    return {};
  }

  // The storage that the session knows by this number, if it is alive and on the list.
  c10::Storage numbered(int64_t number) {
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> passed;
    std::lock_guard lock(mutex_);
    auto found = numbered_.find(number);
    return found != numbered_.end() ? c10::Storage(storage_of(found->second, passed)) : c10::Storage();
  }

  // Gives numbers to those that the session has not heard of, the oldest first, while there are any. Calls `tell`
  // with each.
  template <class Tell>
  void number_all(std::vector<int64_t>& numbers, const Tell& tell) {
    std::lock_guard lock(mutex_);
    Unmet* each = &all_;
    while (each->previous != &all_ && each->previous->number < 0) each = each->previous;
    for (; each != &all_ && !numbers.empty(); each = each->next) {
      each->number = numbers.back();
      numbers.pop_back();
      numbered_[each->number] = each;
      --untold_;
      tell(*each);
    }
  }

  // Numbers of those that have died since the last call.
  std::vector<uint32_t> take_dead() {
    std::lock_guard lock(mutex_);
    return std::exchange(dead_, {});
  }

  // Whether the session has something to hear.
  bool has_news() {
    std::lock_guard lock(mutex_);
    return untold_ != 0 || !dead_.empty();
  }

  size_t untold() {
    std::lock_guard lock(mutex_);
    return untold_;
  }

  int64_t bytes() const { return bytes_; }
  std::mutex& mutex() { return mutex_; }

 private:
  // An entry's storage. What it finds not to be that any more goes to `passed`.
  c10::intrusive_ptr<c10::StorageImpl> storage_of(Unmet* entry,
                                                  std::vector<c10::intrusive_ptr<c10::StorageImpl>>& passed) {
    auto storage = entry->storage.lock();
    if (!storage || memory_of(*storage).get_context() == entry) return storage;
    died(entry);  // the storage has other memory now, and another one this
    passed.push_back(std::move(storage));
    return {};
  }

  void died(Unmet* entry) {
    if (entry->is_listed && entry->number >= 0) dead_.push_back(entry->number);
    unlist(entry);
  }

  void unlist(Unmet* entry) {
    if (!entry->is_listed.exchange(false)) return;
    entry->previous->next = entry->next;
    entry->next->previous = entry->previous;
    bytes_ -= entry->size;
    if (entry->number < 0)
      --untold_;
    else
      numbered_.erase(entry->number);
  }

  static void ended(void* context);

  std::mutex mutex_;
  Unmet all_{{}, Weak(c10::intrusive_ptr<c10::StorageImpl>()), 0, {}, 0, {}, &all_, &all_};
  std::atomic<int64_t> bytes_{0};
  size_t untold_ = 0;  // that the session has not heard of: the last ones of the list
  std::unordered_map<int64_t, Unmet*> numbered_;
  std::vector<uint32_t> dead_;  // numbers that the session has not heard of
};

UnmetList& unmet() {
  static auto* all = [] {
    auto* made = new UnmetList;  // never destroyed: storages outlive everything
    auto lock = +[] { unmet().mutex().lock(); };
    auto unlock = +[] { unmet().mutex().unlock(); };
    pthread_atfork(lock, unlock, unlock);
    return made;
  }();
  return *all;
}

// The memory of a storage goes.
void UnmetList::ended(void* context) {
  auto* entry = static_cast<Unmet*>(context);
  unmet().end(entry);
  delete entry;
}

}  // namespace tidelog
