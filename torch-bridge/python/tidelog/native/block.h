// The offload block that is open, as ops need it.
#pragma once

#include <memory>
#include <vector>

#include "session.h"
#include "thread.h"

namespace tidelog {

class Kernel;

constexpr size_t FORESIGHT_ENTRIES_MAX = 1 << 16;  // beyond, the memory of results' sizes starts afresh

// What of an offload block an op needs. All is read and changed with Python's lock held.
struct Block {
  // Where in a step the program is: `Place` in `_steps.py`.
  struct Place {
    int64_t next_op;
    bool follows, profiles;
  };

  Block(PyObject* hook, PyObject* bystander, PyObject* ledger, const volatile uint32_t* attention)
      : hook(borrowed(hook)),
        bystander(borrowed(bystander)),
        ledger_object(borrowed(ledger)),
        ledger(types::ledger_in(ledger)),
        steps(attribute(hook, names()._steps)),
        funcs(attribute(steps.get(), names()._funcs)),
        needs_seen(attribute(steps.get(), names()._needs)),
        heap(attribute(hook, names()._heap)),
        updates(attribute(hook, names().updates)),
        session(attribute(hook, names()._session), this->ledger, attribute(steps.get(), names()._performer)),
        place(place_of(steps.get())),
        attention(attention),
        in_cpp(is_true(hook, names().in_cpp)) {}

  static volatile Place* place_of(PyObject* steps) {
    Py_buffer view;
    checked(PyObject_GetBuffer(steps, &view, PyBUF_SIMPLE));
    void* numbers = view.len == sizeof(Place) ? view.buf : nullptr;
    PyBuffer_Release(&view);
    TORCH_CHECK(numbers != nullptr, "numbers of another layout");
    return static_cast<volatile Place*>(numbers);
  }

  void end_uses() {
    Gil gil;
    uses.clear();
  }

  void remember(uint64_t key, int64_t born) {
    if (foresight.size() >= FORESIGHT_ENTRIES_MAX) foresight.clear();
    foresight[key] = born;
  }

  // Whether this step is one that `plan` is for.
  bool follows() const { return place->follows && plan.get() != nullptr; }

  void tell_heap() {
    if (allocated < TOLD_EVERY) return;
    call(heap.get(), names().allocated, checked(PyLong_FromLongLong(allocated.exchange(0))).get());
  }

  const Held hook;       // called with an op of the block's that is for Python
  const Held bystander;  // the same with one of another thread
  const Held ledger_object;
  Ledger& ledger;
  const Held steps;
  const Held funcs, needs_seen;  // lists: of the ops of a step that is being profiled. Never replaced
  const Held heap;
  const Held updates;  // a dict of the optimizer's updates that have not run
  const LibrarySession session;
  volatile Place* const place;
  const volatile uint32_t* attention;  // not 0 while completions wait
  const bool in_cpp;                   // whether usual ops are not for Python

  // Of the op that runs and was looked at in full here: what it uses stays where it is while its kernel brings
  // something else back.
  std::vector<uint32_t> uses;

  Held plan{nullptr};  // which the next three are of
  std::vector<const Kernel*> kernels;
  std::vector<char> due;
  std::vector<int64_t> needs;
  std::atomic<int64_t> allocated{0};  // bytes that the heap has not heard of
  std::unordered_map<uint64_t, int64_t> foresight;  // an op with its arguments -> bytes of its results, when last seen
};

// Whoever lets go of it last need not have Python's lock.
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

PyObject* get_compiler = nullptr;  // says what torch.compile looks at entered frames with now

// Whether it looks at any.
bool has_compiler() {
  static PyObject* no_arguments = checked(PyTuple_New(0)).release();
  int flags = PyCFunction_CheckExact(get_compiler) ? PyCFunction_GET_FLAGS(get_compiler) : 0;
  bool is_direct =
      flags == METH_VARARGS || flags == METH_NOARGS;  // a call through Python costs as much as an attribute
  return checked(is_direct ? PyCFunction_GET_FUNCTION(get_compiler)(PyCFunction_GET_SELF(get_compiler), no_arguments)
                           : PyObject_CallNoArgs(get_compiler))
             .get() != Py_None;
}

// Whether an update that has not run hangs on a storage.
bool has_update(const Block& block, const c10::StorageImpl& storage) {
  return PyDict_GET_SIZE(block.updates.get()) != 0 && Ledger::has_update(storage);
}

}  // namespace tidelog
