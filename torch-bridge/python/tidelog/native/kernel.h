// What is decided of an op that may go past Python, as `_hook.py` decides it.
#pragma once

#include "question.h"

namespace tidelog {

// What an op asks of a tensor, where that is not its bytes: `OpInfo.looks`.
enum class Looks { never, always, at_shape, is_pinned };

// Ops that did not go through Python.
std::atomic<int64_t> passed{0};

// How ops of one kind go past Python: those of an overload, or the launches of one kernel (`launch.h`).
class Kernel {
 public:
  // What Python knows of them.
  struct Facts {
    Facts(PyObject* func, PyObject* name, uint64_t written, uint64_t seed, Looks looks, bool is_product, bool repeats)
        : func(borrowed(func)),
          name(interned(types::string_in(name))),
          written(written),
          seed(seed),
          looks(looks),
          is_product(is_product),
          repeats(repeats) {}

    const Held func;                // the overload or the launch, in Python
    const std::string* const name;  // of the op; lives for good
    const uint64_t written;         // bit i: it writes argument i
    const uint64_t seed;            // stands for the op in fingerprints
    const Looks looks;
    const bool is_product;  // it writes a product of its last two matrices
    const bool repeats;     // where it has failed it may run again, as it changes nothing
  };

  explicit Kernel(bool makes) : makes_(makes) {}
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // Has usual ops go past Python from here on. Called with Python's lock held.
  void adopt(std::unique_ptr<const Facts> facts) { facts_ = std::move(facts); }

  enum class Path { python, quiet, planned, observed };

  // One op on its way.
  struct Run {
    std::shared_ptr<Block> block;
    Path path = Path::python;
    int64_t index = -1;  // in the step, where a plan is followed
    int64_t needs = 0;   // bytes of its results, by the plan
    int64_t room = 0;    // bytes that may be in memory before anybody is asked
    uint64_t key = 0;    // what the bytes of its results are remembered by
    bool learns = false;  // nobody has seen yet how many they are
    c10::SmallVector<const c10::StorageImpl*, 4> used;  // the storages of its arguments
    c10::SmallVector<Record*, 4> records;  // of them, where the op is looked at
    UnderWay under_way;
  };

  // Whether an op may go past Python. It is begun then: `carry_out` and `done` follow. `make_numbers` gives its
  // `Numbers`.
  template <class MakeNumbers>
  bool takes(Run& run, const Tensors& arguments, const MakeNumbers& make_numbers) const {
    Gil gil;
    if (!facts_ || Whole::depth != 0) return false;  // unknown, or in the middle of another, or of a request
    if (PyList_GET_SIZE(Whole::waiting) != 0) return false;
    if (facts_->is_product && !arguments.are_of_product()) return false;
    Whole whole;
    if (!passes(run, arguments)) {
      if (!run.block || !begins(run, arguments, make_numbers())) return false;
      run.path = Path::observed;
    }
    run.under_way.begins();
    return true;
  }

  // Has torch run it.
  template <class Redispatch>
  std::invoke_result_t<Redispatch> carry_out(const Run& run, const Redispatch& redispatch) const {
    ++passed;
    At inside(Where::inside);
    try {
      return redispatch();
    } catch (...) {
      if (run.path == Path::observed) run.block->end_uses();
      throw;
    }
  }

  // Whether Python does the op again, which makes room first: the device had no memory for it.
  bool gives_back(Run& run) const {
    if (!facts_->repeats) return false;
    Gil gil;
    run.under_way.ends();
    run.learns = false;
    if (run.index >= 0) run.block->place->next_op = run.index;
    return true;
  }

  void done(const Run& run, const Tensors& results) const {
    if (run.path == Path::observed)
      ends(run, results);
    else
      ran(run, results);
  }

  // Python has done all of it: the next time it is known how much memory the results take.
  void learn(const Run& run, const Tensors& results) const {
    int64_t born = bytes_made(run, results);
    Gil gil;
    Whole whole;
    run.block->remember(run.key, born);
  }

 protected:
  std::unique_ptr<const Facts> facts_;  // null: all are for Python
  const bool makes_;  // whether a result may have a storage that no argument has

 private:
  // Whether an op writes this argument.
  bool writes(size_t position) const { return (facts_->written >> position & 1) != 0; }

  // Whether an op may run without anybody's being asked, with Python's lock held. Otherwise the run has no block where
  // the op is for Python.
  bool passes(Run& run, const Tensors& arguments) const {
    auto block = open_block();
    // Frames that are entered from here on would be compiled.
    if (!block || !block->in_cpp || has_compiler()) return false;
    run.block = std::move(block);
    if (!run.block->ledger.quiet) {
      if (!is_as_planned(run, arguments)) return false;
      run.path = Path::planned;
      return true;
    }
    bool are_settled = arguments.each([&](size_t position, const at::Tensor& tensor) {
      if (!is_plain(tensor)) return false;
      run.used.push_back(tensor.storage().unsafeGetStorageImpl());
      // With DDP, what is written and was never met is a bucket, which Python registers.
      if (run.block->ledger.expects_buckets && writes(position) && Records::of(*run.used.back()) == nullptr)
        return false;
      return !has_update(*run.block, *run.used.back());
    });
    if (!are_settled) {
      run.block = nullptr;
      return false;
    }
    run.room = run.block->ledger.peak;
    run.path = Path::quiet;
    return true;
  }

  // What the hook does once such an op has run. Most of it without Python.
  void ran(const Run& run, const Tensors& results) const {
    if (!makes_ && run.needs == 0) return;
    std::vector<std::pair<int64_t, at::Tensor>> others;
    int64_t slot = 0;
    if (makes_)
      results.each([&](size_t, const at::Tensor& tensor) {
        if (!add(run, tensor, slot)) others.emplace_back(slot, tensor);
        ++slot;
        return true;
      });
    run.block->allocated += run.needs;
    if (others.empty() && run.block->ledger.counted <= run.room && run.block->allocated < TOLD_EVERY) return;
    Gil gil;
    Whole whole;
    for (const auto& [place, tensor] : others) look_at(run, place, tensor);
    tell(run);
  }

  // As `Hook._watchful`, up to where the op runs.
  bool is_as_planned(Run& run, const Tensors& arguments) const {
    const Block& block = *run.block;
    if (!block.follows()) return false;
    run.index = block.place->next_op;
    if (!is_expected(block, run.index)) return false;
    run.needs = block.needs[run.index];
    if (block.due[run.index] || *block.attention != 0 || !has_room(run, run.needs)) return false;
    if (!is_settled(run, arguments)) return false;
    launches(run);
    block.place->next_op = run.index + 1;
    return true;
  }

  // Whether so many bytes more stay below the limit. The dead are looked for only where that may be enough.
  static bool has_room(Run& run, int64_t needs) {
    Ledger& ledger = run.block->ledger;
    run.room = ledger.limit;
    return ledger.counted + needs <= ledger.limit || ledger.live() + needs <= ledger.limit;
  }

  // As `Hook._is_settled`.
  bool is_settled(Run& run, const Tensors& arguments) const {
    Ledger& ledger = run.block->ledger;
    c10::SmallVector<Record*, 2> modified;
    bool settled = arguments.each([&](size_t position, const at::Tensor& tensor) {
      if (!is_plain(tensor)) return false;
      const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
      run.used.push_back(&storage);
      if (has_update(*run.block, storage)) return false;
      Record* record = Records::of(storage);
      if (record == nullptr || record->ledger != &ledger) return false;
      run.records.push_back(record);
      uint8_t state = record->state;
      if (state == CLEAN && writes(position)) modified.push_back(record);
      return state == SETTLED || state == CLEAN;
    });
    if (!settled) return false;
    for (Record* record : modified) ledger.modified(*record);
    return true;
  }

  // It is about to.
  static void launches(const Run& run) {
    run.block->ledger.launches(run.records, UnderWay::count == 0 && InPython::count == 0);
  }

  // -- an op that is looked at in full -------------------------------------------------------------

  // As `Hook._observed`, up to where the op runs.
  bool begins(Run& run, const Tensors& arguments, const Numbers& numbers) const {
    Block& block = *run.block;
    if (facts_->looks == Looks::is_pinned || !block.session.is_usable() || block.session.has_async_uses()) return false;
    if (attribute(block.hook.get(), names().looks_on).get() != Py_None) return false;
    run.index = block.place->next_op;
    if (block.place->follows && !(block.follows() && is_expected(block, run.index))) return false;

    Question question(facts_->seed);
    run.used.clear();
    bool leaves_out = facts_->looks == Looks::always;
    bool is_usual = arguments.each([&](size_t position, const at::Tensor& tensor) {
      if (!question.add(block, tensor, writes(position))) return false;
      run.used.push_back(tensor.storage().unsafeGetStorageImpl());
      if (facts_->looks == Looks::at_shape && position == 0) leaves_out = numbers.has_second(tensor.sizes());
      return true;
    });
    if (!is_usual) return false;
    if (leaves_out) question.leave_out_uses();
    uint64_t fingerprint = question.fingerprint();
    run.key = Question::key(fingerprint, numbers);
    auto foreseen = block.foresight.find(run.key);
    run.learns = foreseen == block.foresight.end();
    if (run.learns) return false;  // Python asks torch

    int64_t needs = foreseen->second;
    block.uses = question.uses();
    try {
      block.session.begin_op(run.index, fingerprint, facts_->name->c_str(), question.uses(), needs);
      run.records = question.records();
      launches(run);
      if (run.index >= 0 && block.place->profiles) block.ledger.streams().op_begins(run.index);
    } catch (...) {
      block.end_uses();
      throw;
    }
    if (run.index >= 0) block.place->next_op = run.index + 1;
    return true;
  }

  bool is_expected(const Block& block, int64_t index) const {
    return index >= 0 && static_cast<size_t>(index) < block.kernels.size() && block.kernels[index] == this;
  }

  // The same from where it has run.
  void ends(const Run& run, const Tensors& results) const {
    Gil gil;
    Whole whole;
    Block& block = *run.block;
    block.end_uses();
    int64_t slot = 0, born = bytes_made(run, results);
    if (makes_)
      results.each([&](size_t, const at::Tensor& tensor) {
        if (!add(run, tensor, slot)) look_at(run, slot, tensor);
        ++slot;
        return true;
      });
    block.remember(run.key, born);
    if (run.index >= 0 && block.plan.get() == nullptr) profiled(block, run.index, born);
    block.session.end_op();
    if (block.ledger.counted > block.ledger.peak) block.ledger.note_peak();
    block.allocated += born;
    block.tell_heap();
  }

  // As `Steps.profiled`.
  void profiled(const Block& block, int64_t index, int64_t born) const {
    if (!block.place->profiles) return;
    put_last(block.funcs.get(), index, facts_->func.get());
    put_last(block.needs_seen.get(), index, checked(PyLong_FromLongLong(born)).get());
    block.ledger.streams().op_ran();
  }

  // Has a list end with an object at a place.
  static void put_last(PyObject* list, int64_t place, PyObject* object) {
    if (PyList_GET_SIZE(list) > place) checked(PyList_SetSlice(list, place, PyList_GET_SIZE(list), nullptr));
    checked(PyList_Append(list, object));
  }

  int64_t bytes_made(const Run& run, const Tensors& results) const {
    if (!makes_) return 0;
    c10::SmallVector<const c10::StorageImpl*, 4> known = run.used;
    int64_t bytes = 0;
    results.each([&](size_t, const at::Tensor& tensor) {
      if (!is_plain(tensor)) return true;
      const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
      if (std::find(known.begin(), known.end(), storage) != known.end()) return true;
      known.push_back(storage);
      bytes += storage->nbytes();
      return true;
    });
    return bytes;
  }

  // Counts a result's storage, if that needs none of Python's. False: Python may know it.
  bool add(const Run& run, const at::Tensor& tensor, int64_t slot) const {
    if (!is_plain(tensor)) return false;
    c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
    if (std::find(run.used.begin(), run.used.end(), &storage) != run.used.end() || storage.nbytes() == 0) return true;
    Record* known = Records::of(storage);
    if (known != nullptr && known->ledger == &run.block->ledger) return true;
    if (known != nullptr || storage.pyobj_slot()->load_pyobj() != nullptr || !Records::can_own(storage)) return false;
    run.block->ledger.born(storage, Birth{facts_->name, run.index, slot});
    return true;
  }

  // A result that Python may know.
  void look_at(const Run& run, int64_t slot, const at::Tensor& tensor) const {
    if (!is_plain(tensor))  // a sparse one has others for its memory
      call(run.block->hook.get(), names().made, checked(THPVariable_Wrap(tensor)).get());
    else
      run.block->ledger.record_of(*tensor.storage().unsafeGetStorageImpl(), Birth{facts_->name, run.index, slot});
  }

  static void tell(const Run& run) {
    Block& block = *run.block;
    if (run.path == Path::quiet) {
      if (block.ledger.counted > block.ledger.peak) block.ledger.has_grown();
      return;
    }
    block.tell_heap();
    Run now = run;
    if (!has_room(now, 0)) call(block.steps.get(), names().end_op);
  }
};

}  // namespace tidelog
