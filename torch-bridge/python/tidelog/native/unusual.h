// Ops that are not usual ones: of which something is to be known or done in Python, or that are in the middle of
// another op or of a request.
#pragma once

#include "kernel.h"
#include "memory_error.h"

namespace tidelog {

// One such op. All is called with Python's lock held.
class Kernel::Unusual {
 public:
  Unusual(Kernel& kernel, const std::shared_ptr<Block>& block, Op& op)
      : kernel_(kernel), block_(*block), python_(block->python), op_(op) {
    run_.block = block;
  }

  // `is_inside`: the op is in the middle of another.
  void operator()(bool is_inside) {
    Apart apart(python_);
    kernel_.learn_facts(block_, op_);
    if (!is_inside && facts().has(COMPOSED)) return op_.run_in(python_.compose);
    if (!is_inside && PyList_GET_SIZE(Whole::waiting) != 0) Services::call(python_.give_way);
    // No other thread has its turn now, nor takes one until the op has ended: this is counted before Python's lock can
    // be let go of.
    run_.under_way.begins();
    if (is_inside || block_.step.is_performing()) return in_the_middle();
    touch_updates();
    if (!runs_without_session()) observed();
  }

 private:
  const Facts& facts() const { return *kernel_.facts_; }

  void touch_updates() {
    if (has_updates(block_, op_.arguments()))
      Services::call(python_.touch_updates, op_.func(), op_.given().args.get(), op_.given().kwargs.get());
  }

  // Keeps what is around the op as it is.
  void in_the_middle() {
    if (block_.ledger.quiet) return launch();  // nobody knows what the op around uses, and that must not leave
    Step::Inside inside(block_.step);
    touch_updates();
    observed();
  }

  // Runs the op where the session is not asked; false: it is.
  bool runs_without_session() {
    Tensors arguments = op_.arguments();
    {
      Whole whole;
      if (!kernel_.passes(run_, arguments)) return false;
    }
    if (!try_to_launch()) {
      if (run_.index >= 0) block_.step.next_op = run_.index;
      if (block_.ledger.quiet) checked(PyObject_CallNoArgs(block_.ledger.when_full.get()));
      return false;
    }
    kernel_.done(run_, op_.results());
    Whole whole;
    tell_python(block_, facts(), op_, nullptr);
    if (block_.ledger.quiet && block_.ledger.counted > block_.ledger.peak) block_.ledger.has_grown();
    return true;
  }

  // The op, looked at in full.
  void observed() {
    Step& step = block_.step;
    if (block_.ledger.is_in_child) {
      refuse_in_child(block_, op_.arguments());
      return launch();
    }
    if (step.follows && !kernel_.is_expected(step)) leave_plan();
    if (block_.ledger.has_async_uses()) Services::call(python_.look);
    Tensors arguments = op_.arguments();
    {
      Whole whole;
      Question question = kernel_.asked(run_, arguments, op_.numbers());
      if (!facts().has(IN_PIECES) || question.bytes() <= block_.piece_bytes_max() || !has_halves()) {
        kernel_.begin(run_, question, needs());
        is_away_ = question.is_away();  // what the op does not wait for may have left at its beginning
        make_usual(arguments);
      }
    }
    if (!halves_.empty()) return in_halves();
    try {
      // Torch would look at memory that is not there; page-locked memory never moves.
      if (facts().has(ASKS_PINNED) && is_away_)
        op_.run_to_false();
      else
        with_room();
    } catch (...) {
      step.uses.clear();
      throw;
    }
    kernel_.done(run_, op_.results(), &op_);
  }

  bool has_halves() {
    halves_ = op_.halves();
    return !halves_.empty();
  }

  // Element by element over lists: doing a list in pieces gives the same bits.
  void in_halves() {
    for (const auto& half : halves_) Unusual(kernel_, run_.block, *half).observed();
    op_.join(halves_);
  }

  // Bytes of the op's results.
  int64_t needs() {
    auto foreseen = block_.foresight.find(run_.key);
    if (foreseen != block_.foresight.end()) return foreseen->second;
    return number_in(
        Services::call(python_.expect, op_.func(), op_.given().args.get(), op_.given().kwargs.get()).get());
  }

  // Gives memory of torch's to arguments that are in memory, and may be resized.
  void make_usual(const Tensors& arguments) {
    if (!facts().has(RESIZES) || !block_.ledger.maps_memory) return;
    for (const Holder& each : arguments)
      if (each.storage != nullptr) Services::call(python_.make_usual, to_python(*each.storage).get());
  }

  // The program does something else than the step that was planned: the rest of the step is reactive.
  void leave_plan() {
    Whole whole;
    Step& step = block_.step;
    const Step::Op* expected = step.expected();
    Held planned = expected != nullptr ? to_python(*expected->name) : borrowed(Py_None);
    step.follows = false;
    Services::call(python_.left_plan, to_python(step.next_op).get(), to_python(*facts().name).get(), planned.get());
  }

  // -- the op itself ------------------------------------------------------------------------------------

  void launch() {
    StepClock::Marked marked(TIDE_TIME_KERNELS);
    if (facts().has(TELLS_STREAMS | GOES_ON))
      for (const Holder& each : op_.arguments())
        if (each.storage != nullptr) Records::let_go_on_device(*each.storage);
    if (facts().has(IN_PYTHON)) return in_python();
    At inside(Where::inside);
    op_.run();
  }

  // The code may wait for another thread. So that looks for the frame that the op runs in, not at what is counted.
  void in_python() {
    run_.under_way.ends();
    try {
      op_.run_in(python_.in_python);
    } catch (...) {
      run_.under_way.begins();
      throw;
    }
    run_.under_way.begins();
  }

  // False: the device had no memory for it, and it may run again.
  bool try_to_launch() {
    try {
      launch();
      return true;
    } catch (...) {
      no_memory_ = said_of_no_memory();
      if (!no_memory_ || !facts().has(REPEATS)) throw;
      return false;
    }
  }

  // Memory that is in pieces may not do: more leaves then, in the end nearly all that the op does not use.
  void with_room() {
    if (try_to_launch()) return;
    for (int64_t times : ROOM_TIMES) {
      Services::call(python_.make_room, to_python(*no_memory_).get(), to_python(*facts().name).get(),
                     to_python(run_.needs).get(), to_python(times).get());
      if (times == ROOM_TIMES.back()) return launch();
      if (try_to_launch()) return;
    }
  }

  static constexpr std::array<int64_t, 3> ROOM_TIMES = {2, 8, 32};  // room for so many times what it needs is made

  Kernel& kernel_;
  Block& block_;
  const Services& python_;
  Op& op_;
  Run run_;
  bool is_away_ = false;  // some of what the op uses is, once it has begun
  std::vector<std::unique_ptr<Op>> halves_;
  std::optional<std::string> no_memory_;
};

inline void Kernel::do_unusual(const std::shared_ptr<Block>& block, Op& op, bool is_inside) {
  Unusual(*this, block, op)(is_inside);
}

inline void Kernel::tell_python(const Block& block, const Facts& facts, Op& op, const Held* observer) {
  auto tell = [&](const Held& function) {
    Services::call(function, op.func(), op.given().args.get(), op.given().kwargs.get(), op.result().get());
  };
  if (facts.has(GOES_ON)) tell(block.python.began);
  if (observer != nullptr && observer->get() != nullptr) tell(*observer);
  if (facts.has(RESIZES))
    for (const Holder& each : op.arguments())
      if (each.storage != nullptr) block.ledger.measure_again(*each.storage);
}

}  // namespace tidelog
