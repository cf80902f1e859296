// Steps of a block's program: the ops of the step that is followed or profiled, and what the session is asked about the
// one that runs. All is called with Python's lock held.
#pragma once

#include <c10/util/SmallVector.h>

#include <optional>
#include <string_view>

#include "ledger.h"

namespace tidelog {

class Kernel;

using Uses = c10::SmallVector<uint32_t, 8>;  // numbers of storages, with `MODIFIES` where they are written

class Step {
 public:
  explicit Step(Ledger& ledger) : ledger(ledger) {}
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // -- ops that are planned, and those that are profiled --------------------------------------------------

  // An op of a step, and the bytes of its results.
  struct Op {
    const Kernel* kernel = nullptr;
    const std::string* name = nullptr;
    int64_t needs = 0;
  };

  bool has_plan() const { return has_plan_; }
  bool has_profile() const { return !profile_.empty(); }

  // Steps follow the plan that the session has now: the first for what was profiled, or another for the same ops.
  // `due`: at which ops it does something. Returns how many ops it has.
  size_t plan(std::string_view due) {
    if (!has_plan_) planned_ = profile_;
    due_.assign(due.begin(), due.end());
    due_.resize(std::min(due.size(), planned_.size()));
    has_plan_ |= !due_.empty();
    return due_.size();
  }

  void forget_plan() { has_plan_ = false; }
  void forget_profile() { profile_.clear(); }

  // The op that is planned to come next; null: none is.
  const Op* expected() const {
    bool is_planned = follows && has_plan_ && next_op >= 0 && static_cast<size_t>(next_op) < due_.size();
    return is_planned ? &planned_[next_op] : nullptr;
  }

  // Returns whether the plan does something at that op.
  bool is_due() const { return due_[next_op] != 0; }

  // An op of a step has run. If the step is profiled, this is noted.
  void profiled(int64_t index, const Op& op) {
    if (index < 0 || !profiles) return;
    if (profile_.size() > static_cast<size_t>(index)) profile_.resize(index);
    profile_.push_back(op);
    ledger.streams().op_ran();
  }

  void leave() { next_op = -1, follows = false; }

  int64_t next_op = -1;  // outside a step below zero; inside, the index of the next op
  bool follows = false;  // whether the step is as planned so far
  bool profiles = false;  // whether a plan is wanted, and there is none yet

  // -- the op that runs -----------------------------------------------------------------------------------

  // Returns once the op's storages are in memory and its results have room. They stay until `end_uses`.
  void begin_op(int64_t index, uint64_t fingerprint, const char* name, Uses used, int64_t needs) {
    uses = std::move(used);
    ledger.flush();
    const SessionCalls& calls = ledger.calls();
    calls.require(calls.op_begin(calls.handle, index, fingerprint, name, uses.data(), uses.size(), needs));
  }

  // An op of a step is about to be launched. If the step is profiled, its time begins.
  void profile_begins(int64_t index) const {
    if (index >= 0 && profiles) ledger.streams().op_begins(index);
  }

  // The session knows the op's results from here on.
  void tell_births() {
    ledger.flush();
    if (ledger.counted > ledger.peak) ledger.note_peak();
  }

  // Returns once the budget holds with the op's results.
  void end_op() {
    ledger.flush();
    ledger.calls().require(ledger.calls().op_end(ledger.calls().handle));
    if (ledger.counted > ledger.peak) ledger.note_peak();
  }

  // Returns whether a request of the session is being done right now, or an op is in the middle of being decided.
  bool is_performing() const { return ledger.is_performing || Whole::depth != 0; }

  // Scope of an op, or of a request: what begins meanwhile is inside it, and none of the step: what is around it stays
  // as it is.
  class Inside {
   public:
    explicit Inside(Step& step)
        : step_(step),
          next_op_(step.next_op),
          follows_(step.follows),
          is_performing_(std::exchange(step.ledger.is_performing, false)),
          uses_(std::exchange(step.uses, {})) {
      step.leave();
      ++step.depth_;
      const SessionCalls& calls = step.ledger.calls();
      calls.nest(calls.handle, step.depth_);
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() {
      step_.next_op = next_op_, step_.follows = follows_;
      step_.ledger.is_performing = is_performing_;
      step_.uses = std::move(uses_);
      const SessionCalls& calls = step_.ledger.calls();
      calls.nest(calls.handle, --step_.depth_);  // what is to be done next is for whoever is around
    }

   private:
    Step& step_;
    const int64_t next_op_;
    const bool follows_, is_performing_;
    Uses uses_;
  };

  // Brings storages into memory for an access that is no op, also in the middle of one. Nobody says when it has ended:
  // what it uses stays until the next op, or `end_touch`.
  void touch(Uses touched) {
    Uses outer = uses;
    for (uint32_t use : outer)
      if (std::none_of(touched.begin(), touched.end(),
                       [&](uint32_t each) { return storage_in(each) == storage_in(use); }))
        touched.push_back(use);
    try {
      std::optional<Inside> inside;
      if (is_performing()) inside.emplace(*this);
      Uses brought = touched;
      begin_op(-1, 0, "an access outside the dispatcher", std::move(touched), 0);
      for (uint32_t use : brought)
        if (RecordPtr record = ledger.record_at(storage_in(use))) ledger.end_reading(*record);
      ledger.launches(0);
    } catch (...) {
      uses = std::move(outer);
      throw;
    }
    uses = std::move(outer);
    ledger.note_peak();
  }

  // Lets storages leave again that were brought back for an access.
  void end_touch() {
    if (uses.empty()) end_op();
  }

  static uint32_t storage_in(uint32_t use) { return use & ~MODIFIES; }

  Ledger& ledger;
  Uses uses;  // of the op that runs, which stay: its kernel may bring something else back

 private:
  bool has_plan_ = false;
  std::vector<Op> planned_, profile_;
  std::vector<char> due_;
  uint32_t depth_ = 0;  // how many ops, or requests, are around what is done now
};

}  // namespace tidelog
