// Records of storages, each kept by the storage's object in C++, without an object in Python. Those of one block stand
// in its ledger.
//
// A record owns the memory of its storage, where that is plain memory of an allocator's: it hangs there as the owner,
// so it learns when the memory goes, and finds its storage by two reads. Other memory (a file's, NumPy's, a GPU's,
// whose allocator looks at owners) stays as it is: such a record is found by a table, and its death by a look at all of
// them.
//
// A reference to a storage, or an object of it in Python, would change what autograd does with it: it adds gradients up
// in place where nobody else has the storage. So a record has a weak one, which counts for nothing there. Of a GPU's
// memory that is in flight the record is the owner meanwhile, as it is of the host's all the time: what torch tells its
// allocator of streams by the storage is lost then, so that an op that does so takes the memory back first (`let_go`).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "arrays.h"
#include "memory.h"
#include "python.h"
#include "slices.h"
#include "streams.h"

namespace tidelog {

// `_record.SETTLED` and the others.
constexpr uint8_t SETTLED = 0, CLEAN = 1, LEAVING = 2, OUT = 4, COMING = 8, AWAY = OUT | COMING;

class Ledger;
struct Record;
using RecordPtr = c10::intrusive_ptr<Record>;

// Birth of a storage: the op's name, its index in the step (below zero outside of one), which of its results, and what
// is in that.
struct Birth {
  const std::string* op = nullptr;  // of `interned`, which lives for good
  int64_t index = -1, slot = 0;
  bool has_integers = false;
};

inline const std::string* interned(const std::string& text) {
  static auto* mutex = new std::mutex;
  static auto* all = new std::set<std::string>;
  std::lock_guard lock(*mutex);
  return &*all->insert(text).first;
}

// A place in a ledger's list, which is in the order in which storages came.
struct Link {
  Link *previous = this, *next = this;
};

struct Record final : c10::intrusive_ptr_target, Link {
  explicit Record(c10::StorageImpl& storage)
      : impl(&storage), weak(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage)) {}

  // The storage; null where it has died.
  c10::Storage storage() const { return c10::Storage(weak.lock()); }

  bool is_away() const { return (state & AWAY) != 0; }
  // Returns whether nothing of it is in memory.
  bool is_out() const { return (state & OUT) != 0 && present == 0; }
  // Bytes that are in memory.
  int64_t counted() const { return (state & OUT) != 0 ? present : size; }

  // The name people know the tensor by.
  std::string describe() const {
    if (name != nullptr) return py::cast<std::string>(py::handle(name));
    if (birth.op == nullptr)
      return "a tensor of " + std::to_string(size) + " bytes (storage " + std::to_string(number) + ")";
    if (birth.index < 0) return "an output of " + *birth.op;
    return "output " + std::to_string(birth.slot) + " of " + *birth.op + " (op " + std::to_string(birth.index) + ")";
  }

  // Returns the text of the error of an access that nothing has brought the bytes back for.
  std::string guard_text() const;
  // Returns the guard's text while the block runs. Reads of a bucket are not refused: see `is_guarded`.
  Message guard() const { return is_guarded ? guard_text() : std::string(); }

  c10::StorageImpl* const impl;  // alive as an address, whether or not the storage is
  c10::weak_intrusive_ptr<c10::StorageImpl> weak;
  c10::DataPtr memory;  // the storage's, where this is its owner
  size_t memory_size = 0;  // of a slice
  bool is_owner = false;  // whether this hangs on the storage as the owner of its memory
  bool is_lent = false;  // whether it is the owner only while the memory is in flight

  Ledger* ledger = nullptr;  // null: no block counts it
  int64_t size = 0, present = 0;
  Birth birth;
  int64_t number = -1;  // by which the session knows it; below zero: it does not
  std::atomic<uint8_t> state{SETTLED};
  bool is_reported = false;  // the session has heard of it
  bool is_guarded = true;  // when it is out; a bucket of DDP's against writes alone, as C++ asks about its memory
  bool moves = true;  // not in memory of the program's own
  bool is_beside = false;  // host memory of updates (`_host.py`): no block's, even if the device is named as the host
  uint64_t writes = 0;  // how often it may have been written, where a ledger counts that
  int64_t alone_in = 0;  // the block in which no array of NumPy's that is not known has its memory: `Records::block`
  bool is_unwritten = false;  // it is a slice of a file, and has the file's pages still
  bool waits = false;  // it stays until nobody else has its memory: see `Ledger::look_again`
  bool in_flight = false;  // a device or a copy may touch its memory
  c10::Storage kept;  // the storage meanwhile, where it must live
  EventPtr event;  // behind what touches its memory meanwhile, where that may not have run
  EventPtr read;  // behind the copy of what stays in memory, which may be read so long, but not written
  EventPtr last_use;  // behind the ops that are known to have used what is being copied out
  LastUses uses;  // those ops
  int64_t pins = 0, addresses_end = 0, async_uses = 0;
  int64_t aliases = 0;  // arrays of NumPy's and slices that have its memory
  bool has_address = false;  // somebody has asked for the address of its memory, and may use it
  std::atomic<int64_t> loans{0};  // ops of other threads that are using it right now
  bool was_borrowed = false;  // whether there were any since `event` was recorded

  // Python's; read and changed with its lock.
  PyObject *name = nullptr, *parted = nullptr;

  // Destroys a record; never with the lock of `Records`: Python's is taken.
  ~Record() override {
    if ((name == nullptr && parted == nullptr) || !Py_IsInitialized()) return;
    Gil gil;
    Py_XDECREF(name);
    Py_XDECREF(parted);
  }
};

// Converts records to Python.
inline Held to_python(Record& record) { return to_python(RecordPtr::reclaim_copy(&record)); }
inline Held to_python(c10::StorageImpl& storage) {
  return to_python(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage)));
}

// All records, of all blocks.
class Records {
 public:
  static Records& all() {
    static auto* records = [] {
      auto* made = new Records;  // never destroyed: storages outlive everything
      auto lock = +[] { Records::all().mutex.lock(); };
      auto unlock = +[] { Records::all().mutex.unlock(); };
      pthread_atfork(lock, unlock, unlock);
      return made;
    }();
    return *records;
  }

  // The record of a storage that is alive; null: it has none.
  static Record* of(const c10::StorageImpl& storage) {
    const c10::DataPtr& memory = memory_of(storage);
    if (memory.get_deleter() == &ended) {
      auto* record = static_cast<Record*>(memory.get_context());
      if (record->impl == &storage) return record;
    }
    Records& records = all();
    if (records.count_.load(std::memory_order_relaxed) == 0) return nullptr;
    std::lock_guard lock(records.mutex);
    auto found = records.by_storage_.find(&storage);
    return found != records.by_storage_.end() ? found->second.get() : nullptr;
  }

  // Returns the record of a storage; one is made where there is none.
  static Record& made_for(c10::StorageImpl& storage) {
    if (Record* record = of(storage)) return *record;
    if (all().count_ > 2 * all().found_ + 1024) look_for_dead();
    auto record = c10::make_intrusive<Record>(storage);
    if (can_own(storage)) {
      own(*record);
    } else {
      std::lock_guard lock(all().mutex);
      all().insert(record);
    }
    return *record;
  }

  // Returns whether the storage's memory is plain memory of an allocator's on the host, a slice's or an array's: a
  // record may own it.
  static bool can_own(const c10::StorageImpl& storage) {
    const c10::DataPtr& memory = memory_of(storage);
    return (is_allocators(storage) || is_part_of_other(memory)) && memory.device().is_cpu();
  }

  // Returns whether memory is a slice's or an array's: something else may have it, too.
  static bool is_part_of_other(const c10::DataPtr& memory) {
    return Slices::is_slice(memory) || Arrays::is_array(memory);
  }

  // Returns whether the records is plain memory of an allocator's, on any device.
  static bool is_allocators(const c10::StorageImpl& storage) {
    const c10::DataPtr& memory = memory_of(storage);
    return memory.get() != nullptr && memory.get() == memory.get_context() &&
           (storage.resizable() || is_of_host_allocator(memory));
  }

  // Returns whether a storage's memory is its alone, and may go. With Python's lock held.
  static bool is_own(const c10::StorageImpl& storage) {
    Record* record = of(storage);
    bool is_owner = record != nullptr && record->is_owner;
    if (storage.resizable()) return is_owner || is_allocators(storage);
    return is_owner && is_alone(*record);
  }

  // Returns whether nobody else uses the memory of a storage that cannot be resized, and whose record owns it.
  static bool is_alone(const Record& record) {
    if (record.alone_in != block) return false;
    if (Arrays::is_array(record.memory)) return Arrays::is_alone(record.memory);
    if (!Slices::is_slice(record.memory)) return true;
    std::lock_guard lock(all().mutex);
    return all().slices_.is_alone(record.memory);
  }

  // Torch's own look at the memory of a storage that is out raises the guard's error.
  static const c10::DataPtr& memory_of(const c10::StorageImpl& storage) {
    return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  }

  // Returns the memory that a storage has, which its record may own.
  static const c10::DataPtr& owned_memory_of(const c10::StorageImpl& storage) {
    Record* record = of(storage);
    return record != nullptr && record->is_owner ? record->memory : memory_of(storage);
  }

  // Makes a record own its storage's memory. A collective or another thread may read the address meanwhile: the storage
  // has it all the time.
  static void own(Record& record) {
    c10::DataPtr& held = record.impl->_mutable_data_ptr_no_checks();
    auto end = held.get_deleter();
    record.memory = c10::DataPtr(held.get(), held.release_context(), end, held.device());
    if (Slices::is_slice(record.memory)) {
      record.memory_size = record.impl->nbytes();
      std::lock_guard lock(all().mutex);
      all().slices_.add(record.memory, record.memory_size);
    }
    hang(record);
  }

  // The storage loses its memory, which is returned, and keeps its size. The record hangs on it meanwhile.
  static c10::DataPtr take(c10::StorageImpl& storage, Message message) {
    Record* record = of(storage);
    if (record == nullptr) return tidelog::take(storage, std::move(message));
    Guard::lift(storage);
    RecordPtr kept = RecordPtr::reclaim_copy(record);
    c10::DataPtr memory = unhang(*record);
    hang(*record);
    guard(storage, std::move(message));
    return memory;
  }

  // Gives memory of this size to a storage, whose address is returned. Where there is none it stays as it was, and
  // guarded.
  static uint64_t give(c10::StorageImpl& storage, size_t size, Message message) {
    return give(storage, allocated(storage, size), size, std::move(message));
  }

  // Gives this memory to a storage.
  static uint64_t give(c10::StorageImpl& storage, c10::DataPtr memory, size_t size, Message message) {
    Record* record = of(storage);
    if (record == nullptr || !record->is_owner)
      return tidelog::give(storage, std::move(memory), size, std::move(message));
    auto address = reinterpret_cast<uint64_t>(memory.get());
    RecordPtr kept = RecordPtr::reclaim_copy(record);
    Guard::lift(storage);
    c10::DataPtr before = unhang(*record);
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(size);
    restore(kept);
    guard(storage, std::move(message));
    return address;
  }

  // Two storages have each other's memory from here on.
  static void swap(c10::StorageImpl& storage, c10::StorageImpl& other, Message message) {
    let_go(storage);
    let_go(other);
    tidelog::swap(storage, other, std::move(message));
    Record* record = of(storage);
    if (record != nullptr && can_own(storage)) own(*record);
  }

  // The storage has its memory as torch made it: others look at its owner.
  static void let_go(c10::StorageImpl& storage) {
    Record* record = of(storage);
    if (record == nullptr || !record->is_owner) return;
    if (record->is_lent) record->kept = record->storage();
    part(*record);
  }

  // Lets go of a GPU's memory, which a record owns only in flight.
  static void let_go_on_device(c10::StorageImpl& storage) {
    if (Record* record = of(storage); record != nullptr && record->is_lent) let_go(storage);
  }

  // Returns whether no record is in the table: then each death is known.
  static bool knows_all() { return all().count_.load(std::memory_order_relaxed) == 0; }

  // Takes the record of a storage that has died out of the table. With the lock held; what is returned is let go of
  // without it.
  RecordPtr record_death(Record& record) {
    died(record);
    auto found = by_storage_.find(record.impl);
    if (found == by_storage_.end()) return {};
    RecordPtr dead = std::move(found->second);
    by_storage_.erase(found);
    count_ = by_storage_.size();
    return dead;
  }

  // Looks which storages have died, of all whose records are in the table.
  static void look_for_dead() {
    if (knows_all()) return;
    std::vector<RecordPtr> dead;  // let go of without the lock
    std::lock_guard lock(all().mutex);
    auto& table = all().by_storage_;
    for (auto each = table.begin(); each != table.end();) {
      if (!each->second->weak.expired()) {
        ++each;
        continue;
      }
      died(*each->second);
      dead.push_back(std::move(each->second));
      each = table.erase(each);
    }
    all().count_ = all().found_ = table.size();
  }

  // Begins the time in which nobody frees the storage's memory but `ends`. What no record owns lives until then.
  static void begins(Record& record) {
    record.in_flight = true;
    if (!record.is_owner) record.kept = record.storage();
  }

  // Begins that time for a storage that lives until its end in any case.
  static void begins_alive(Record& record) {
    record.in_flight = true;
    record.kept = record.storage();
  }

  // Begins that time as the owner of the memory until its end, where that is an allocator's of a GPU.
  static void begins_as_owner(Record& record) {
    if (!record.is_owner && is_allocators(*record.impl)) {
      own(record);
      record.is_lent = true;
    }
    begins(record);
  }

  // Ends that time: nobody touches the memory any more.
  static void ends(Record& record) {
    RecordPtr dead;
    c10::Storage kept = std::exchange(record.kept, c10::Storage());
    EventPtr event = std::move(record.event), last_use = std::move(record.last_use);
    c10::DataPtr memory;
    c10::Storage alive = record.is_lent ? record.storage() : c10::Storage();
    if (alive) part(record);
    std::lock_guard lock(all().mutex);
    if (!record.in_flight) return;
    record.in_flight = false;
    if (record.is_owner) return;
    memory = all().memory_taken_from(record);
    auto& dying = all().dying_;
    auto found = std::find_if(dying.begin(), dying.end(), [&](const RecordPtr& each) { return each.get() == &record; });
    if (found == dying.end()) return;
    dead = std::move(*found);
    dying.erase(found);
    died(record);
  }

  static inline int64_t block = 1;  // how many have begun, and one

  std::mutex mutex;  // of the tables, and of what ledgers have of records

 private:
  // Records the death of a storage, with the lock held.
  static void died(Record& record);

  // The memory of a storage goes: with it, or because it gets other memory.
  static void ended(void* context) {
    RecordPtr record = RecordPtr::reclaim(static_cast<Record*>(context));
    c10::DataPtr memory;  // freed without the lock
    std::lock_guard lock(all().mutex);
    record->is_owner = record->is_lent = false;
    bool is_dead = record->weak.expired();
    if (!record->in_flight) memory = all().memory_taken_from(*record);
    if (!is_dead)
      all().insert(record);
    else if (record->in_flight)
      all().dying_.push_back(record);
    else
      died(*record);
  }

  // The opposite of `own`.
  static void part(Record& record) {
    c10::DataPtr& held = record.impl->_mutable_data_ptr_no_checks();
    RecordPtr kept = RecordPtr::reclaim(static_cast<Record*>(held.release_context()));
    record.is_owner = record.is_lent = false;
    std::lock_guard lock(all().mutex);
    held = all().memory_taken_from(record);  // at the same address, as in `own`
    all().insert(kept);
  }

  void insert(RecordPtr record) {
    by_storage_[record->impl] = std::move(record);
    count_ = by_storage_.size();
  }

  void erase(const c10::StorageImpl* storage) {
    by_storage_.erase(storage);
    count_ = by_storage_.size();
  }

  // Hangs a record on its storage as the owner of what is in `record.memory`.
  static void hang(Record& record) {
    RecordPtr owner = RecordPtr::reclaim_copy(&record);
    c10::StorageImpl& storage = *record.impl;
    storage._mutable_data_ptr_no_checks() =
        c10::DataPtr(record.memory.get(), owner.release(), &ended, storage.device());
    record.is_owner = true;
    std::lock_guard lock(all().mutex);
    all().erase(&storage);
  }

  // The opposite: its memory is returned, and the storage has none. Somebody has a reference to the record.
  static c10::DataPtr unhang(Record& record) {
    c10::DataPtr owned = record.impl->set_data_ptr(c10::DataPtr(nullptr, record.impl->device()));
    if (!record.is_owner) return owned;
    record.is_owner = record.is_lent = false;
    RecordPtr::reclaim(static_cast<Record*>(owned.release_context()));
    if (!Slices::is_slice(record.memory)) return std::exchange(record.memory, c10::DataPtr());
    std::lock_guard lock(all().mutex);
    return all().memory_taken_from(record);
  }

  // Takes what a record owned. With the lock held.
  c10::DataPtr memory_taken_from(Record& record) {
    if (Slices::is_slice(record.memory)) slices_.remove(record.memory, record.memory_size);
    return std::exchange(record.memory, c10::DataPtr());
  }

  // The storage has memory again.
  static void restore(const RecordPtr& record) {
    if (can_own(*record->impl)) return own(*record);
    std::lock_guard lock(all().mutex);
    all().insert(record);
  }

  ska::flat_hash_map<const c10::StorageImpl*, RecordPtr> by_storage_;  // of records that own no memory
  std::atomic<size_t> count_{0}, found_{0};  // how many there are; how many of them lived when all were looked at
  Slices slices_;  // whose memory records own
  std::vector<RecordPtr> dying_;  // whose storages are dead, and whose memory is in flight
};

}  // namespace tidelog
