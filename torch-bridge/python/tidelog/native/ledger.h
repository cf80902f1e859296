// The ledger of a block: every storage that it has met, how many bytes of them are in memory, and what the session has
// yet to learn of them. No other class changes these.
//
// All is called with Python's lock held, but for what a storage's death does.
#pragma once

#include <torch/csrc/autograd/graph_task.h>
#include <unistd.h>

#include <unordered_map>

#include "departing.h"
#include "records.h"
#include "session_calls.h"

namespace tidelog {

class Ledger {
 public:
  // `device`: where the memory is that the block moves.
  Ledger(c10::Device device, Streams& streams, int64_t limit) : limit(limit), device_(device), streams_(streams) {}

  ~Ledger() {
    std::lock_guard lock(Records::all().mutex);
    for (Link* each = list_.next; each != &list_; each = each->next) static_cast<Record*>(each)->ledger = nullptr;
  }

  // -- births and deaths --------------------------------------------------------------------------------

  // The record of a storage; one that was never met is counted from here on. Null: it is not ours to move.
  Record* record_of(c10::StorageImpl& storage, const Birth& birth = {}) {
    Record* known = Records::of(storage);
    if (known != nullptr && (known->ledger == this || known->is_beside)) return known->is_beside ? nullptr : known;
    if (known != nullptr && known->ledger != nullptr) known->ledger->rebind(storage);
    if (!owns(storage)) return nullptr;
    // The kernel may drop the file's pages, so they do not count.
    if (known != nullptr && known->is_unwritten && !Records::is_own(storage)) return nullptr;
    int64_t size = is_alias(storage) ? 0 : static_cast<int64_t>(storage.nbytes());
    if (size == 0) return nullptr;  // nothing to move; looked at again when an op has given it bytes
    Record& record = Records::made_for(storage);
    enlist(record, size, birth);
    for (int64_t left = record.aliases + (record.has_address ? 1 : 0); left != 0; --left) pin(record);
    return &record;
  }

  // Counts an op's result that is new, as plain memory of an allocator's. Also without Python's lock.
  void born(c10::StorageImpl& storage, const Birth& birth) {
    enlist(Records::made_for(storage), static_cast<int64_t>(storage.nbytes()), birth);
  }

  // The record of a storage that an op writes. With DDP, one that was never met is a bucket of a reducer that is older
  // than the block: C++ alone has it.
  Record* record_of_written(c10::StorageImpl& storage) {
    Record* known = Records::of(storage);
    bool is_new = known == nullptr;
    if (known != nullptr) known->is_unwritten = false;
    Record* record = record_of(storage);
    if (is_new && record != nullptr && expects_buckets) record->is_guarded = false;
    return record;
  }

  // Allows more in memory than ever, while all is quiet.
  void has_grown() {
    if (live() > limit) checked(PyObject_CallNoArgs(when_full.get()));
    note_peak();
  }

  // The number by which the session knows a storage, given when it is first needed.
  int64_t number_of(Record& record) {
    if (record.number >= 0) return record.number;  // none but its death changes that
    std::lock_guard lock(mutex());
    return numbered(record);
  }

  // The numbers below this are the session's own.
  void number_from(int64_t first) { next_number_ = first; }

  // A step begins: numbers of storages that died before it are used again. Within one a profile tells storages apart
  // by them.
  void reuse_numbers() {
    std::lock_guard lock(mutex());
    free_numbers_.insert(free_numbers_.end(), retired_numbers_.begin(), retired_numbers_.end());
    retired_numbers_.clear();
  }

  // The record of the storage of this number; null: there is none.
  RecordPtr record_at(int64_t number) {
    std::lock_guard lock(mutex());
    auto found = by_number_.find(number);
    return found != by_number_.end() ? RecordPtr::reclaim_copy(found->second) : RecordPtr();
  }

  // Returns all live records, in the order in which they came.
  std::vector<RecordPtr> all() {
    Records::look_for_dead();
    std::vector<RecordPtr> found;
    std::lock_guard lock(mutex());
    for (Link* each = list_.next; each != &list_; each = each->next)
      found.push_back(RecordPtr::reclaim_copy(static_cast<Record*>(each)));
    return found;
  }

  // A storage that is out is emptied: its bytes are never read again, and what it holds later is a new one's.
  void discard(c10::StorageImpl& storage) {
    Records::give(storage, 0, std::nullopt);
    if (Record* record = Records::of(storage); record != nullptr && record->ledger == this) forget(*record);
  }

  // Forgets a record: it was emptied, or another block takes it over.
  void forget(Record& record) {
    std::lock_guard lock(mutex());
    if (record.ledger == this) died(record);
    record.state = SETTLED;
  }

  // Begins or ends a pause, in which nothing comes back: whoever touches what is out learns why.
  void pause(bool on) {
    is_paused = on;
    for (const RecordPtr& each : all()) {
      if (c10::Storage storage = each->storage(); !storage || !each->is_away()) continue;
      Guard::lift(*each->impl);
      tidelog::guard(*each->impl, on ? each->guard_text() : each->guard());
    }
  }

  // Records the death of a storage, with the lock of `Records` held.
  void died(Record& record) {
    counted -= record.counted();
    if (record.state != SETTLED) --marked;
    if (!record.is_reported) --untold_;
    if (oldest_seen_ == &record) oldest_seen_ = record.next;
    record.previous->next = record.next;
    record.next->previous = record.previous;
    if (record.number >= 0) {
      by_number_.erase(record.number);
      aliased_.erase(record.number);
      (record.is_reported ? deaths_ : retired_numbers_).push_back(static_cast<uint32_t>(record.number));
    }
    record.ledger = nullptr;
    record.number = -1;
    record.is_reported = false;
  }

  // -- where storages are, and which of them stay there ---------------------------------------------------

  bool owns(const c10::StorageImpl& storage) const { return storage.device() == device_; }

  // Notes the mark that the session put on a storage. What is marked `OUT` counts no longer.
  void mark(Record& record, uint8_t state) {
    std::lock_guard lock(mutex());
    marked += (state != SETTLED) - (record.state != SETTLED);
    counted -= record.counted();
    record.state = state;
    counted += record.counted();
    if (state != SETTLED) quiet = false;
  }

  // Records the bytes in memory of a storage that is marked `OUT` because parts of it are.
  void has_present(Record& record, int64_t size) {
    std::lock_guard lock(mutex());
    counted -= record.counted();
    record.present = size;
    counted += record.counted();
  }

  // The storage is about to differ from its copy in the log, by what the session is asked about.
  void modifies(Record& record) {
    end_reading(record);
    if (record.state == CLEAN) mark(record, SETTLED);
  }

  // Records a modification that the session is not asked about: it hears of it before anything else.
  void modified(Record& record) {
    ++record.writes;
    modified_.push_back(number_of(record));  // told without need, it does no harm
    modifies(record);
  }

  // Measures a storage again, which may have been resized, or given other memory.
  void measure_again(c10::StorageImpl& storage) {
    Record* record = record_of(storage);
    if (record == nullptr) return;
    if (!record->is_owner && !record->in_flight && Records::can_own(storage)) Records::own(*record);
    auto size = static_cast<int64_t>(storage.nbytes());
    if (size == record->size) return;
    resized_.push_back(number_of(*record));
    std::lock_guard lock(mutex());
    counted -= record->counted();
    record->size = size;
    counted += record->counted();
  }

  // Returns whether any storage has no memory, or not its bytes yet.
  bool has_away() {
    auto records = all();
    return std::any_of(records.begin(), records.end(), [](const RecordPtr& each) { return each->is_away(); });
  }

  // Returns whether an update hangs on a storage that has not run.
  static bool has_update(const c10::StorageImpl& storage) { return update_on(storage).get() != Py_None; }

  // Returns the update on a storage; None: there is none.
  static Held update_on(const c10::StorageImpl& storage) {
    PyObject* object = storage.pyobj_slot()->load_pyobj();
    return object != nullptr && update_of != nullptr ? checked(PyObject_CallOneArg(update_of, object))
                                                     : borrowed(Py_None);
  }

  // Function by which Python finds what it hangs on a storage's object, of one argument.
  static inline PyObject* update_of = nullptr;

  // Returns whether the storage's memory is torch's own to give and take.
  bool movable(c10::StorageImpl& storage) {
    Record* record = Records::of(storage);
    // It moved; and torch aborts if a guarded storage is asked if it is shared.
    if (record != nullptr && record->is_away()) return true;
    if (has_update(storage)) return true;  // it was asked then, and is guarded since
    if (record != nullptr && (!record->moves || (buckets_stay && !record->is_guarded))) return false;
    if (static_cast<int64_t>(storage.nbytes()) == random_state_bytes) return false;
    if (!asks_device && Records::is_own(storage)) return true;
    return call(device.get(), names().why_unmovable, to_python(storage).get()).get() == Py_None;
  }

  // A slice of a file has come: it counts once it is written, or nobody else has the file.
  void maps(Record& record) {
    record.alone_in = Records::block;
    record.is_unwritten = true;
    mapped_.push_back(RecordPtr::reclaim_copy(&record));
  }

  // Storages that something else had the memory of count and move from here on, where nothing has it any more.
  void look_again() {
    auto counts = [&](const RecordPtr& each) {
      c10::Storage storage = each->storage();
      if (!storage || !each->is_unwritten) return true;
      return record_of(*each->impl) != nullptr;
    };
    mapped_.erase(std::remove_if(mapped_.begin(), mapped_.end(), counts), mapped_.end());
    auto is_over = [&](const RecordPtr& each) {
      if (each->ledger != this || !each->waits) return true;
      c10::Storage storage = each->storage();
      if (!storage || !movable(*each->impl)) return !storage;
      each->waits = false;
      unpin(*each);
      return true;
    };
    waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), is_over), waiting_.end());
  }

  // Notes that an op writes a storage.
  void note_write(const c10::StorageImpl& storage) const {
    if (!counts_writes) return;
    if (Record* record = Records::of(storage); record != nullptr) ++record->writes;
  }

  // Keeps a storage where it is: an alias exists that nobody sees, and may write there.
  void pin(Record& record) {
    ++record.writes;
    int64_t number = number_of(record);
    ++record.pins;
    if (c10::Storage storage = record.storage()) {
      auto begin = reinterpret_cast<uintptr_t>(Records::memory_of(*record.impl).get());
      std::lock_guard lock(mutex());
      aliased_[number] = {begin, begin + record.size};
    }
    pins_.emplace_back(number, true);
  }

  // Takes one `pin` back.
  void unpin(Record& record) {
    ++record.writes;
    if (record.ledger != this) return;
    std::lock_guard lock(mutex());
    if (--record.pins == 0) aliased_.erase(record.number);
    pins_.emplace_back(record.number, false);
  }

  // An array of NumPy's or a slice has the memory of a storage, which stays until the opposite. It may be in no ledger.
  static void alias_begins(Record& record) {
    ++record.aliases;
    if (record.ledger != nullptr) record.ledger->pin(record);
  }

  static void alias_ends(Record& record) {
    --record.aliases;
    if (record.ledger != nullptr) record.ledger->unpin(record);
  }

  // Notes that somebody may use the address of a storage's memory, or that nobody does any more.
  static void has_address(Record& record, bool has) {
    if (std::exchange(record.has_address, has) == has || record.ledger == nullptr) return;
    has ? record.ledger->pin(record) : record.ledger->unpin(record);
  }

  // An op that has returned uses the storage until the opposite: it stays meanwhile.
  void async_use(Record& record, bool begins) {
    record.async_uses += begins ? 1 : -1;
    if (record.ledger == this && record.async_uses == (begins ? 1 : 0)) async_changes_.push_back(number_of(record));
  }

  // -- in what order ops and moves use memory -------------------------------------------------------------

  Streams& streams() const { return streams_; }

  // An op is about to be launched on the current stream, and may use any storage. It makes at most so many bytes.
  void launches(int64_t needs) {
    make_room(needs);
    streams_.launches(false, false);
    share_with_new();
  }

  // Question about an op that uses these alone, beside what it makes. `none_runs`: no other op is under way.
  template <class Records>
  void launches(const Records& used, int64_t needs, bool none_runs) {
    make_room(needs);
    Use use = streams_.launches(true, none_runs);
    if (use.op != 0)
      for (const auto& each : used) note(each->uses, use);
    share_with_new();
  }

  // The current stream has been made to wait for an op that goes on elsewhere, and uses this: it
  // counts as used there.
  void awaited_here(Record& record) {
    if (Use use = streams_.launches(true, false); use.op != 0) note(record.uses, use);
  }

  // A storage has its bytes again, or is about to lose its memory.
  void share(const c10::StorageImpl& storage) const { streams_.share(Records::owned_memory_of(storage)); }

  // The handle of an event behind everything that was launched, which is noted with a storage whose memory is about to
  // be touched. Null: it is all done.
  void* after(Record& record) const {
    record.was_borrowed = record.loans != 0;
    return noted(record.event, streams_.after());
  }

  // Returns an event behind the ops that may have used the storage. Null: that is not earlier.
  void* after_last(Record& record) const { return noted(record.last_use, streams_.after_last(record.uses)); }

  // Makes streams wait for the bytes that are on their way to a storage, of which ops before that were no use. What
  // reads those of one that stays holds up nobody before the storage is written.
  void order(Record& record) const {
    if (!record.event) return;
    if ((record.state & COMING) != 0) {
      streams_.fetched(record.event);
      record.uses.clear();
    } else if ((record.state & LEAVING) != 0 && !record.event->query()) {
      streams_.reads(record.event);
      record.read = record.event;
    }
  }

  // -- memory that goes and comes ---------------------------------------------------------------------------

  // The memory of a storage is about to be touched by a transfer, until `Records::ends`. What parts may be given back
  // of is torch's meanwhile.
  void begin_flight(Record& record) const {
    bool has_parts = divides_from != 0 && static_cast<uint64_t>(record.size) >= divides_from;
    if (streams_.are_a_devices() && !has_parts)
      Records::begins_as_owner(record);
    else
      Records::begins(record);
  }

  // Ends that for a storage that stays: where it is being copied out still, once that is over.
  void ends(Record& record) {
    if (!record.read) return Records::ends(record);
    read_.push_back(RecordPtr::reclaim_copy(&record));
  }

  // Ends that for a storage that is about to be written, or gone: what is launched from here on waits for what reads
  // it, or whoever has its memory next.
  void end_reading(Record& record) {
    if (!record.read) return;
    EventPtr read = std::exchange(record.read, nullptr);
    // Where another transfer touches it the end of that ends it.
    bool is_settled = (record.state & (LEAVING | AWAY)) == 0;
    if (is_settled && is_gone(record))
      departs(record, std::move(read));
    else
      streams_.fetched(std::move(read), TIDE_TIME_COPIES_OUT);
    if (is_settled) Records::ends(record);
  }

  // Ends that for a storage that has died meanwhile. Who has its memory next waits for what touches it.
  void end_dead(Record& record) {
    end_reading(record);
    if (record.event) streams_.fetched(record.event);
    streams_.share(record.memory);
    Records::ends(record);
    record.state = SETTLED;  // whoever waits for it has waited
  }

  // A storage that is `OUT` loses its memory. Where that is read still, it goes when that is over.
  void take(Record& record, Message message) {
    end_reading(record);
    share(*record.impl);
    if (record.event && record.was_borrowed) {
      // An op of another thread may have been launched behind it.
      streams_.fetched(record.event, TIDE_TIME_COPIES_OUT);
      after(record);
    }
    bool is_plain =
        Records::is_allocators(*record.impl) || (record.is_owner && !Records::is_part_of_other(record.memory));
    auto size = static_cast<size_t>(record.size);
    c10::DataPtr memory = Records::take(*record.impl, std::move(message));
    if (DeviceArena::has(memory))
      streams_.free_behind(std::move(memory), record.event, record.uses);
    else if (record.event && !record.event->query())
      departing_.add({std::move(memory), size, is_plain, record.event});
    else if (Slices::is_slice(memory))
      Slices::drop_pages(memory, size);
  }

  // Gives memory to a storage that is out, whose address is returned: an arena's; of one that has left and is as large;
  // both may be written behind `record.event`; or other.
  uint64_t give(Record& record, size_t size, Message message) {
    EventPtr event;
    if (c10::DataPtr memory = DeviceArena::allocate_for_copy(size, event)) {
      record.event = std::move(event);
      return Records::give(*record.impl, std::move(memory), size, std::move(message));
    }
    auto block = departing_.take(size);
    if (!block) {
      make_room(static_cast<int64_t>(size));
      return Records::give(*record.impl, size, std::move(message));
    }
    record.event = std::move(block->read);
    return Records::give(*record.impl, std::move(block->memory), size, std::move(message));
  }

  // Makes room for `needs` bytes within the limit, with what has been given up and is read still.
  void make_room(int64_t needs) {
    if (!read_.empty() && !is_in_child) look_at_read();
    if (!departing_.empty()) departing_.keep_at_most(limit - counted - needs, streams_);
  }

  // Bytes that have been given up and are read still.
  int64_t departing() const { return departing_.bytes(); }

  // Frees all departing memory: what is launched from here on waits for what reads it.
  void let_go() {
    departing_.keep_at_most(0, streams_);
    for (const RecordPtr& each : std::exchange(read_, {})) end_reading(*each);
  }

  // Frees all departing memory where no device reads anything any more.
  void let_go_at_once() {
    departing_.clear();
    for (const RecordPtr& each : std::exchange(read_, {})) end_reading(*each);
  }

  // -- how much is in memory ------------------------------------------------------------------------------

  // Bytes of the storages that are in memory: all but those that are `OUT`.
  int64_t live() {
    look_for_dead();
    return counted;
  }

  void note_peak() { peak = std::max<int64_t>(peak, live()); }
  bool is_at_rest() { return live() <= limit && marked == 0; }

  // -- what the session hears ------------------------------------------------------------------------------

  // `async_uses`: lists of the ops that have returned and use storages still.
  void connect(const SessionCalls& calls, PyObject* async_uses) {
    calls_ = calls;
    async_uses_ = borrowed(async_uses);
  }

  bool has_async_uses() const {
    if (async_uses_.get() == nullptr) return false;
    Py_ssize_t count = 0;
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(async_uses_.get()); ++place)
      count += size_of(PyTuple_GET_ITEM(async_uses_.get(), place));
    return count != 0;
  }

  const SessionCalls& calls() const { return calls_; }

  // Sends what it has not heard of.
  void flush() {
    if (calls_.handle == 0) return;
    look_for_dead();
    std::vector<tide_birth> births;
    std::vector<uint32_t> deaths;
    if (untold_ != 0) births = births_to_tell();
    {
      std::lock_guard lock(mutex());
      deaths.swap(deaths_);
    }
    if (!births.empty() || !deaths.empty()) {
      calls_.require(calls_.sync(calls_.handle, births.data(), births.size(), deaths.data(), deaths.size()));
      std::lock_guard lock(mutex());
      retired_numbers_.insert(retired_numbers_.end(), deaths.begin(), deaths.end());
    }
    if (resized_.empty() && modified_.empty() && pins_.empty() && async_changes_.empty()) return;
    for (int64_t number : std::exchange(resized_, {}))
      if (auto record = record_at(number)) calls_.require(calls_.resized(calls_.handle, number, record->size));
    for (int64_t number : std::exchange(modified_, {}))
      if (record_at(number)) calls_.require(calls_.modified(calls_.handle, number));
    for (auto [number, on] : std::exchange(pins_, {}))
      if (record_at(number)) calls_.require(calls_.pin(calls_.handle, number, on));
    for (int64_t number : std::exchange(async_changes_, {}))
      if (auto record = record_at(number))
        calls_.require(calls_.async_use(calls_.handle, number, record->async_uses > 0));
  }

  // Returns whether the ledger has heard of nothing that lives now and was not told.
  bool has_pending() {
    std::lock_guard lock(mutex());
    return untold_ != 0 || !deaths_.empty() || !resized_.empty() || !modified_.empty() || !pins_.empty() ||
           !async_changes_.empty();
  }

  const int64_t limit;              // of `live`
  std::atomic<int64_t> counted{0};  // as `live`, with those that have died unseen
  int64_t peak = 0;                 // the highest `live` at an op boundary
  std::atomic<int64_t> marked{0};   // storages that are not plainly resident
  bool quiet = false;  // nothing is out, on its way or copied, and there is room: ops need not be looked at
  bool expects_buckets = false;  // whether there is a reducer of DDP
  bool buckets_stay = false;     // whether a hook of it writes its buckets on a thread that Python does not know
  bool newborn_is_guarded = true, newborn_moves = true;  // see `Record`
  bool backward_moves = true;  // the same of what a backward pass makes
  int64_t random_state_bytes = 0;  // `Generator.set_state` reads the host's in C++, where nobody sees that: it stays
  bool asks_device = false;  // also of plain memory on the host: it may be locked by CUDA
  bool counts_writes = false;  // whether records say how often they were written
  uint64_t divides_from = 0;  // bytes from which parts of an arena's blocks move; 0: none do
  bool maps_memory = false;  // what comes back has memory of Python's (`_mapped.py`), not of torch's
  bool is_performing = false;  // the session calls back
  bool is_paused = false;      // nothing comes back before the program says so
  bool is_in_child = false;    // this is a child of a fork: the session is its parent's

  // Python's: the device, what reaches storages for other blocks and threads, and what is called where a birth exceeds
  // the limit while all is quiet.
  Held device{nullptr}, access{nullptr}, when_full{nullptr};
  std::string outside;  // where storages are that are out, in words
  const pid_t process = getpid();

 private:
  static std::mutex& mutex() { return Records::all().mutex; }

  static void* noted(EventPtr& place, EventPtr event) {
    place = std::move(event);
    return place ? place->eventId() : nullptr;
  }

  // Returns whether a storage in flight has died, or has other memory.
  static bool is_gone(const Record& record) { return record.weak.expired() || (!record.is_owner && record.memory); }

  // Takes the memory that such a storage had, which is read until an event.
  void departs(Record& record, EventPtr read) {
    c10::DataPtr memory;
    {
      std::lock_guard lock(mutex());
      memory = std::exchange(record.memory, c10::DataPtr());
    }
    bool is_plain = record.weak.expired();  // then it has the storage's size
    streams_.share(memory);
    if (DeviceArena::has(memory))
      streams_.free_behind(std::move(memory), std::move(read), record.uses);
    else if (memory)
      departing_.add({std::move(memory), static_cast<size_t>(record.size), is_plain, std::move(read)});
  }

  // Looks which copies of what stays are over.
  void look_at_read() {
    auto is_over = [&](const RecordPtr& each) {
      if (each->read && !is_gone(*each) && !each->read->query()) return false;
      end_reading(*each);
      return true;
    };
    read_.erase(std::remove_if(read_.begin(), read_.end(), is_over), read_.end());
  }

  // Shares with new streams what moved before they appeared.
  void share_with_new() {
    if (!streams_.have_grown()) return;
    for (const RecordPtr& each : all())
      if (c10::Storage storage = each->storage(); storage && !each->is_away()) share(*each->impl);
  }

  // Looks which storages have died of the newest ones, which mostly do, and of some older ones in turn. One that owns
  // its memory has said so.
  void look_for_dead() {
    if (Records::knows_all()) return;
    std::vector<RecordPtr> dead;  // let go of without the lock
    std::lock_guard lock(mutex());
    size_t left = LOOKS;
    for (Link *each = list_.previous, *next; each != &list_ && left != 0; each = next, --left) {
      next = each->previous;
      look_at(static_cast<Record&>(*each), dead);
    }
    for (left = LOOKS; left != 0; --left) {
      if (oldest_seen_ == &list_) oldest_seen_ = list_.next;
      if (oldest_seen_ == &list_) return;
      Link* each = std::exchange(oldest_seen_, oldest_seen_->next);
      look_at(static_cast<Record&>(*each), dead);
    }
  }

  static void look_at(Record& record, std::vector<RecordPtr>& dead) {
    if (!record.is_owner && !record.in_flight && record.weak.expired())
      dead.push_back(Records::all().record_death(record));
  }

  // Hands a storage over to another block.
  void rebind(c10::StorageImpl& storage) { call(access.get(), names().rebind, to_python(storage).get()); }

  // Returns whether the storage only shows memory that another one owns, and that counts there.
  bool is_alias(const c10::StorageImpl& storage) const {
    if (storage.resizable()) return false;
    auto address = reinterpret_cast<uintptr_t>(Records::memory_of(storage).get());
    std::lock_guard lock(mutex());
    return std::any_of(aliased_.begin(), aliased_.end(),
                       [&](const auto& each) { return each.second.first <= address && address < each.second.second; });
  }

  void enlist(Record& record, int64_t size, const Birth& birth) {
    std::lock_guard lock(mutex());
    record.ledger = this;
    record.size = size;
    record.present = 0;
    record.birth = birth;
    record.state = SETTLED;
    record.number = -1;
    record.is_reported = record.is_unwritten = record.waits = false;
    record.is_guarded = newborn_is_guarded;
    record.moves = newborn_moves && (backward_moves || torch::autograd::get_current_graph_task_id() == -1);
    // Of integers that a reducer makes, C++ keeps the address from one op to the next.
    if (!newborn_is_guarded && birth.has_integers) record.moves = false;
    record.pins = record.addresses_end = record.async_uses = 0;
    record.uses.clear();
    record.previous = list_.previous;
    record.next = &list_;
    list_.previous->next = &record;
    list_.previous = &record;
    counted += size;
    ++untold_;
  }

  // Returns a record's number, with the lock held.
  int64_t numbered(Record& record) {
    if (record.number >= 0 || record.ledger != this) return record.number;
    if (free_numbers_.empty()) {
      record.number = next_number_++;
    } else {
      record.number = free_numbers_.back();
      free_numbers_.pop_back();
    }
    by_number_[record.number] = &record;
    return record.number;
  }

  // Returns the births of storages that the session has not heard of: they are the last ones of the list.
  std::vector<tide_birth> births_to_tell() {
    std::vector<RecordPtr> untold;
    {
      std::lock_guard lock(mutex());
      for (Link* each = list_.previous; each != &list_ && !static_cast<Record*>(each)->is_reported;
           each = each->previous)
        untold.push_back(RecordPtr::reclaim_copy(static_cast<Record*>(each)));
    }
    std::vector<tide_birth> births;
    std::vector<RecordPtr> waits;
    births.reserve(untold.size());
    for (auto each = untold.rbegin(); each != untold.rend(); ++each) {
      Record& record = **each;
      c10::Storage storage = record.storage();
      bool stays = !storage || !movable(*record.impl);
      if (stays && storage && record.alone_in == Records::block && record.moves) {
        waits.push_back(*each);  // only the other users of its memory keep it
        stays = false;
      }
      std::lock_guard lock(mutex());
      if (record.ledger != this || record.is_reported) continue;
      auto number = static_cast<uint64_t>(numbered(record));
      record.is_reported = true;  // from here on its death is told
      --untold_;
      uint64_t index = record.birth.index < 0 ? OUTSIDE_A_STEP : record.birth.index;
      births.push_back({stays ? number | TIDE_UNMOVABLE : number, static_cast<uint64_t>(record.size),
                        index << 16 | static_cast<uint64_t>(record.birth.slot)});
    }
    for (const RecordPtr& each : waits) {
      if (each->ledger != this || each->waits) continue;
      each->waits = true;
      pin(*each);
      waiting_.push_back(each);
    }
    return births;
  }

  static constexpr uint64_t OUTSIDE_A_STEP = 0xFFFFFFFF;  // the op index of a birth that no step has seen

  const c10::Device device_;
  Streams& streams_;
  DepartingMemory departing_;
  std::vector<RecordPtr> read_;  // what stays, and is being copied out
  SessionCalls calls_;
  Held async_uses_{nullptr};

  // Number of storages that are checked each time that dead ones are looked for, with the lock of `Records` held.
  static constexpr size_t LOOKS = 256;  // at storages, each time that the dead are looked for
  Link list_;
  Link* oldest_seen_ = &list_;  // where the next look at older ones begins
  size_t untold_ = 0;
  std::unordered_map<int64_t, Record*> by_number_;
  std::vector<uint32_t> deaths_;  // numbers that the session has not heard of
  std::vector<uint32_t> free_numbers_, retired_numbers_;
  int64_t next_number_ = 0;

  // Numbers of storages that the session has not heard of, beside births and deaths.
  std::vector<int64_t> resized_, modified_, async_changes_;
  std::vector<std::pair<int64_t, bool>> pins_;
  std::vector<RecordPtr> mapped_, waiting_;  // see `look_again`
  std::unordered_map<int64_t, std::pair<uintptr_t, uintptr_t>> aliased_;  // the memory of those that are pinned
};

inline void Records::died(Record& record) {
  if (record.ledger != nullptr) record.ledger->died(record);
}

inline std::string Record::guard_text() const {
  if (ledger != nullptr && ledger->is_paused)
    return "tidelog: tensor " + describe() + " is " + ledger->outside +
           ", as the offload block is paused: call resume() on the block's object before it is used.";
  return "tidelog: tensor " + describe() + " is " + (ledger != nullptr ? ledger->outside : "on NVMe") +
         ", and this access did not go through the offload block (a thread that is older than it, a raw kernel, or "
         "after the block). "
         "Touch it by a torch op inside the block first, or call restore() on the block's object.";
}

}  // namespace tidelog
