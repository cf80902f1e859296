// One call of an op, where more is to be done with it than its kernel's usual path does. All is called with Python's
// lock held.
#pragma once

#include "question.h"

namespace tidelog {

class Op {
 public:
  // Arguments by position, and those by name.
  struct Given {
    Held args, kwargs;
  };

  Op() = default;
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;
  virtual ~Op() = default;

  virtual size_t count() const = 0;  // of its arguments
  virtual Tensors arguments() const = 0;
  virtual Numbers numbers() const = 0;

  // Has torch run it, as it would have without us, with the arguments that it came with.
  virtual void run() = 0;
  // Skips the op: its result is False.
  virtual void run_to_false() {}
  // Calls a function of Python's with the op, its arguments and a function that has torch run it, which it calls.
  virtual void run_in(const Held& function) = 0;
  // The op for each half of its lists. Empty: it has none that is longer than one.
  virtual std::vector<std::unique_ptr<Op>> halves() const { return {}; }
  // Joins ops that have run in its place.
  virtual void join(const std::vector<std::unique_ptr<Op>>&) {}

  // Returns the results of the last run.
  virtual Tensors results() const = 0;

  // Returns the function as Python has it.
  virtual PyObject* func() const = 0;
  virtual const Given& given() = 0;
  virtual Held result() = 0;
};

}  // namespace tidelog
