// The offload block that is open, as ops need it.
#pragma once

#include <memory>

#include "performer.h"
#include "services.h"
#include "step.h"

namespace tidelog {

constexpr size_t FORESIGHT_ENTRIES_MAX = 1 << 16;  // beyond, the memory of results' sizes starts afresh

// All is read and changed with Python's lock held.
struct Block {
  // `step`: in Python, which has the ledger.
  Block(const py::object& step, const py::object& services, const py::dict& updates, const volatile uint32_t* attention)
      : step_object(borrowed(step.ptr())),
        step(step.cast<Step&>()),
        ledger(this->step.ledger),
        python(services.ptr()),
        updates(borrowed(updates.ptr())),
        attention(attention) {}

  void remember(uint64_t key, int64_t born) {
    if (foresight.size() >= FORESIGHT_ENTRIES_MAX) foresight.clear();
    foresight[key] = born;
  }

  void tell_heap() {
    if (allocated < TOLD_EVERY) return;
    StepClock::Allocating allocating;
    checked(PyObject_CallOneArg(python.allocated.get(), to_python(allocated.exchange(0)).get()));
  }

  // Ops over lists are done in pieces of this.
  int64_t piece_bytes_max() const { return std::max<int64_t>(ledger.limit / 4, 1); }

  const uint64_t number = ++count;
  const Held step_object;
  Step& step;
  Ledger& ledger;
  const Services python;
  const Held updates;                  // a dict of the optimizer's updates that have not run
  const volatile uint32_t* attention;  // not 0 while completions wait
  Held observer{nullptr};              // called with each op that was looked at in full, where there is one

  std::atomic<int64_t> allocated{0};  // bytes that the heap has not heard of
  std::unordered_map<uint64_t, int64_t> foresight;  // an op with its arguments -> bytes of its results, when last seen

 private:
  static inline uint64_t count = 0;
};

// Deleter of a block, which takes Python's lock.
struct End {
  void operator()(Block* block) const {
    Gil gil;
    delete block;
  }
};

std::shared_ptr<Block>& open_block() {
  static auto* block = new std::shared_ptr<Block>;  // never destroyed: Python may be gone by then
  return *block;
}

}  // namespace tidelog
