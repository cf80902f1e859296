// Kernel of every op: what it uses and makes, where that is, and what must come in first. An op meets one of three
// paths, by how much must be known. It is correct on each of them.
//
// quiet     nothing is out or on its way and there is room: only an op's new storages are counted.
// planned   a plan is followed: the op's storages are checked for being out, the plan acts at the op's index, and the
// op
//           is checked against the one that the plan expects.
// observed  the session is asked about every storage that the op uses.
//
// Usual ops need nothing of Python's (`takes`). The others are those of `unusual.h`.
#pragma once

#include <forward_list>

#include "op.h"

namespace tidelog {

// Traits of an op, or of the launches of a kernel: `Trait` in `_ops.py`.
enum Trait : uint32_t {
  LOOKS = 1,           // it asks no tensor for its bytes
  LOOKS_AT_SHAPE = 2,  // the same, where its second argument is the shape of its first
  ASKS_PINNED = 4,     // it asks whether memory is page-locked
  IS_PRODUCT = 8,      // it writes a product of its last two matrices
  REPEATS = 16,        // where it has failed it may run again, as it changes nothing
  RESIZES = 32,        // it may change the size of what it writes
  IN_PIECES = 64,      // it may be done list by list, piece by piece
  IN_PYTHON = 128,     // it may be written in Python, and launch kernels
  GOES_ON = 256,       // it may go on after it has returned: its result has a `Work`
  COMPOSED = 512,      // it is made of other ops, which are seen
  UNFILLED = 1024,     // whoever runs it may write its result in C++, past all ops
  TELLS_STREAMS = 2048,  // it tells torch's allocator which streams use its tensors
};

// Ops that needed nothing of Python's.
std::atomic<int64_t> passed{0};

// Ops of one kind: those of an overload, or the launches of one kernel (`launch.h`).
class Kernel {
 public:
  struct Facts {
    const std::string* const name;  // of the op; lives for good
    const uint64_t written;         // bit i: it writes argument i
    const uint64_t seed;            // stands for the op in fingerprints
    const uint32_t traits;

    bool has(uint32_t any) const { return (traits & any) != 0; }
  };

  explicit Kernel(bool makes) : makes_(makes) {}
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  enum class Path { quiet, planned, observed };

  // One op on its way.
  struct Run {
    std::shared_ptr<Block> block;
    Path path = Path::quiet;
    int64_t index = -1;  // in the step
    int64_t needs = 0;   // bytes of its results, as far as they are known before
    int64_t room = 0;    // bytes that may be in memory before anybody is asked
    uint64_t key = 0;    // what the bytes of its results are remembered by
    c10::SmallVector<const c10::StorageImpl*, 4> used;  // the storages of its arguments
    c10::SmallVector<Record*, 4> records;  // of them, where the op is as planned
    UnderWay under_way;
  };

  // Begins an op if it is a usual one, and returns whether it is; `carry_out` and `done` follow then. `make_numbers`
  // gives its `Numbers`.
  template <class MakeNumbers>
  bool takes(Run& run, const Tensors& arguments, const MakeNumbers& make_numbers) const {
    Gil gil;
    run.block = open_block();
    if (!run.block || !knows_facts(*run.block)) return false;
    // In the middle of another, or of a request; or another thread has its turn first.
    if (Whole::depth != 0 || PyList_GET_SIZE(Whole::waiting) != 0) return false;
    if (facts_->has(ASKS_PINNED) || is_special(arguments)) return false;
    Whole whole;
    if (has_updates(*run.block, arguments)) return false;
    if (!passes(run, arguments) && !begins_usually(run, arguments, make_numbers())) return false;
    run.under_way.begins();
    return true;
  }

  // Has torch run it.
  template <class Redispatch>
  std::invoke_result_t<Redispatch> carry_out(const Run& run, const Redispatch& redispatch) const {
    ++passed;
    At inside(Where::inside);
    StepClock::Marked marked(TIDE_TIME_KERNELS);
    try {
      return redispatch();
    } catch (...) {
      if (run.path == Path::observed) forget_uses(*run.block);
      throw;
    }
  }

  // Returns whether the op may run again: the device had no memory for it.
  bool gives_back(Run& run) const {
    if (!facts_->has(REPEATS)) return false;
    Gil gil;
    run.under_way.ends();
    if (run.index >= 0) run.block->step.next_op = run.index;
    return true;
  }

  // Finishes an op that has run. `op`: of one that is not usual.
  void done(const Run& run, const Tensors& results, Op* op = nullptr) const {
    if (run.path == Path::observed)
      ends(run, results, op);
    else
      ran(run, results);
  }

  // Does an op that is not usual, or that is in the middle of something: see `unusual.h`.
  void do_unusual(const std::shared_ptr<Block>& block, Op& op, bool is_inside);

 protected:
  // Asks Python about the first op of the kind in each block.
  void learn_facts(const Block& block, const Op& op) {
    if (knows_facts(block)) return;
    Whole whole;
    Held found = Services::call(block.python.facts, op.func(), to_python(op.count()).get());
    const char* name;
    unsigned long long written, seed;
    unsigned traits;
    if (!PyArg_ParseTuple(found.get(), "sKKI", &name, &written, &seed, &traits)) throw_python_error();
    facts_ = &learnt_.emplace_front(Facts{interned(name), written, seed, traits});
    block_ = block.number;
  }

  bool knows_facts(const Block& block) const { return block_ == block.number; }

  // Memory that the fork copied is as good as any; what was out stays with the parent.
  static void refuse_in_child(const Block& block, const Tensors& arguments) {
    for (const Holder& each : arguments)
      if (each.storage != nullptr)
        if (Record* record = Records::of(*each.storage); record != nullptr && record->is_away())
          Services::call(block.python.refuse_in_child, to_python(*record).get());
  }

  // Returns whether an op writes this argument.
  bool writes(size_t position) const { return (facts_->written >> std::min<size_t>(position, 63) & 1) != 0; }

  // Returns the question to the session.
  Question asked(Run& run, const Tensors& arguments, const Numbers& numbers) const {
    run.path = Path::observed;
    run.used.clear();
    bool leaves_out = facts_->has(LOOKS);
    Question question(run.block->ledger, facts_->seed);
    for (const Holder& each : arguments) {
      question.add(each, writes(each.position));
      if (each.storage != nullptr) run.used.push_back(each.storage);
      if (facts_->has(LOOKS_AT_SHAPE) && each.position == 0 && each.tensor != nullptr && !each.tensor->is_nested())
        leaves_out = numbers.has_second(each.tensor->sizes());
    }
    run.key = question.key(numbers);
    if (leaves_out) question.leave_out_uses();
    return question;
  }

  // Counts what an op has made while nothing else is asked about it.
  void ran(const Run& run, const Tensors& results) const {
    if (!makes_ && run.needs == 0) return;
    c10::SmallVector<std::pair<int64_t, Holder>, 1> others;
    int64_t slot = 0;
    if (makes_)
      for (const Holder& each : results) {
        if (!add(run, each, slot)) others.emplace_back(slot, each);
        ++slot;
      }
    run.block->allocated += run.needs;
    if (others.empty() && run.block->ledger.counted <= run.room && run.block->allocated < TOLD_EVERY) return;
    Gil gil;
    Whole whole;
    Apart apart(run.block->python);
    for (const auto& [place, holder] : others) look_at(run, place, holder);
    tell(run);
  }

  const Facts* facts_ = nullptr;
  const bool makes_;  // whether a result may have a storage that no argument has

 private:
  class Unusual;

  uint64_t block_ = 0;  // in which its facts were learnt
  std::forward_list<Facts> learnt_;  // also those of earlier blocks: an op of another thread may have begun in one

  // Returns whether an op is looked at in full wherever a plan is followed. A product resizes nothing that has its
  // shape.
  bool is_special(const Tensors& arguments) const {
    return facts_->has(RESIZES | IN_PIECES | IN_PYTHON | GOES_ON | COMPOSED | TELLS_STREAMS) &&
           !(facts_->has(IS_PRODUCT) && arguments.are_of_product());
  }

  // Returns whether updates that have not run hang on what an op uses.
  static bool has_updates(const Block& block, const Tensors& arguments) {
    return PyDict_GET_SIZE(block.updates.get()) != 0 &&
           std::any_of(arguments.begin(), arguments.end(),
                       [](const Holder& each) { return each.storage != nullptr && Ledger::has_update(*each.storage); });
  }

  // -- without the session ------------------------------------------------------------------------------

  // Returns whether an op may run without anybody's being asked.
  bool passes(Run& run, const Tensors& arguments) const {
    Ledger& ledger = run.block->ledger;
    if (!ledger.quiet) return !is_special(arguments) && is_as_planned(run, arguments);
    run.path = Path::quiet;
    run.room = ledger.peak;
    for (const Holder& each : arguments) {
      if (each.storage == nullptr) continue;
      run.used.push_back(each.storage);
      if (writes(each.position)) ledger.note_write(*each.storage);
      // With DDP, what is written and was never met is a bucket.
      if (ledger.expects_buckets && writes(each.position)) ledger.record_of_written(*each.storage);
    }
    return true;
  }

  bool is_as_planned(Run& run, const Tensors& arguments) const {
    Step& step = run.block->step;
    if (!is_expected(step)) return false;
    run.path = Path::planned;
    run.index = step.next_op;
    run.needs = step.expected()->needs;
    if (step.is_due() || *run.block->attention != 0 || !has_room(run, run.needs)) return false;
    if (!is_settled(run, arguments)) return false;
    step.ledger.launches(run.records, run.needs, none_runs_beside(run.under_way));
    step.next_op = run.index + 1;
    return true;
  }

  // Returns whether `needs` bytes more stay below the limit. The dead are looked for only where that may be enough.
  static bool has_room(Run& run, int64_t needs) {
    Ledger& ledger = run.block->ledger;
    run.room = ledger.limit;
    return ledger.counted + needs <= ledger.limit || ledger.live() + needs <= ledger.limit;
  }

  // Returns whether the session need not be asked about what an op uses: all of it is in memory, and none is being
  // copied out. Of copies of what it writes it is told later.
  bool is_settled(Run& run, const Tensors& arguments) const {
    Ledger& ledger = run.block->ledger;
    c10::SmallVector<Record*, 2> modified;
    for (const Holder& each : arguments) {
      if (each.storage == nullptr) continue;
      run.used.push_back(each.storage);
      Record* record = Records::of(*each.storage);
      if (record == nullptr || record->ledger != &ledger) return false;
      run.records.push_back(record);
      uint8_t state = record->state;
      if (state != SETTLED && state != CLEAN) return false;
      if (!writes(each.position)) continue;
      ledger.note_write(*each.storage);
      if (state == CLEAN || record->read) modified.push_back(record);
    }
    for (Record* record : modified) ledger.modified(*record);
    return true;
  }

  // -- an op that is looked at in full -------------------------------------------------------------

  // Begins an op that needs nothing of Python's; false: it does.
  bool begins_usually(Run& run, const Tensors& arguments, const Numbers& numbers) const {
    Block& block = *run.block;
    if (block.observer.get() != nullptr || block.ledger.is_in_child || block.ledger.has_async_uses()) return false;
    if (block.step.follows && !is_expected(block.step)) return false;
    Apart apart(block.python);
    Question question = asked(run, arguments, numbers);
    auto foreseen = block.foresight.find(run.key);
    if (foreseen == block.foresight.end()) return false;
    begin(run, question, foreseen->second);
    return true;
  }

  bool is_expected(const Step& step) const {
    const Step::Op* expected = step.expected();
    return expected != nullptr && expected->kernel == this;
  }

  void begin(Run& run, const Question& question, int64_t needs) const {
    Step& step = run.block->step;
    run.index = step.next_op;
    run.needs = needs;
    try {
      step.begin_op(run.index, question.fingerprint(), facts_->name->c_str(), question.uses(), needs);
      question.end_reading();
      step.ledger.launches(question.records(), needs, none_runs_beside(run.under_way));
      step.profile_begins(run.index);
    } catch (...) {
      step.uses.clear();
      throw;
    }
    if (run.index >= 0) step.next_op = run.index + 1;
  }

  static void forget_uses(Block& block) {
    Gil gil;
    block.step.uses.clear();
  }

  // Finishes an op from where it has run.
  void ends(const Run& run, const Tensors& results, Op* op) const {
    Gil gil;
    Whole whole;
    Block& block = *run.block;
    Apart apart(block.python);
    block.step.uses.clear();
    int64_t slot = 0, born = bytes_made(run, results);
    if (makes_)
      for (const Holder& each : results) {
        if (!add(run, each, slot)) look_at(run, slot, each);
        ++slot;
      }
    if (op != nullptr) tell_python(block, *facts_, *op, &block.observer);
    block.remember(run.key, born);
    block.step.profiled(run.index, {this, facts_->name, born});
    // Where the result is not filled yet, nothing leaves before the next op begins: it could be that.
    if (facts_->has(UNFILLED))
      block.step.tell_births();
    else
      block.step.end_op();
    block.allocated += born;
    block.tell_heap();
  }

  // An op that is not usual has run; `observer`: of those that are looked at in full.
  static void tell_python(const Block& block, const Facts& facts, Op& op, const Held* observer);

  int64_t bytes_made(const Run& run, const Tensors& results) const {
    if (!makes_) return 0;
    c10::SmallVector<const c10::StorageImpl*, 4> known = run.used;
    int64_t bytes = 0;
    for (const Holder& each : results) {
      if (each.storage == nullptr || std::find(known.begin(), known.end(), each.storage) != known.end()) continue;
      known.push_back(each.storage);
      bytes += each.storage->nbytes();
    }
    return bytes;
  }

  // Counts a result's storage, if that needs none of Python's. False: Python may know it.
  bool add(const Run& run, const Holder& holder, int64_t slot) const {
    if (holder.storage == nullptr) return true;
    c10::StorageImpl& storage = *holder.storage;
    if (std::find(run.used.begin(), run.used.end(), &storage) != run.used.end() || storage.nbytes() == 0) return true;
    Record* known = Records::of(storage);
    if (known != nullptr && known->ledger == &run.block->ledger) return true;
    if (known != nullptr || storage.pyobj_slot()->load_pyobj() != nullptr || !Records::can_own(storage)) return false;
    run.block->ledger.born(storage, birth_of(run, slot, holder));
    return true;
  }

  // A result that Python may know.
  void look_at(const Run& run, int64_t slot, const Holder& holder) const {
    run.block->ledger.record_of(*holder.storage, birth_of(run, slot, holder));
  }

  Birth birth_of(const Run& run, int64_t slot, const Holder& holder) const {
    bool has_integers = holder.tensor != nullptr && c10::isIntegralType(holder.tensor->scalar_type(), true);
    return {facts_->name, run.index, slot, has_integers};
  }

  void tell(const Run& run) const {
    Block& block = *run.block;
    if (run.path == Path::quiet) {
      if (block.ledger.counted > block.ledger.peak) block.ledger.has_grown();
      return;
    }
    block.tell_heap();
    bool is_over = block.ledger.counted > block.ledger.limit && block.ledger.live() > block.ledger.limit;
    if (is_over && !facts_->has(UNFILLED)) block.step.end_op();
  }
};

}  // namespace tidelog
