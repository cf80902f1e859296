// The offload block that is open, as ops need it.
#pragma once

#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/Storage.h>

#include <memory>
#include <vector>

#include "session.h"

namespace tidelog {

class Kernel;

constexpr int64_t TOLD_EVERY = 1 << 20;            // the heap hears of so many bytes at once
constexpr size_t FORESIGHT_ENTRIES_MAX = 1 << 16;  // beyond, the memory of results' sizes starts afresh

// What is looked at with each op: `Counters` in `_ledger.py`.
struct Counters {
  int64_t limit, counted, peak;
  bool quiet, expects_buckets;
};

// Where an object of Python's has it, for as long as that lives.
volatile Counters* counters_of(PyObject* ledger) {
  Py_buffer view;
  checked(PyObject_GetBuffer(ledger, &view, PyBUF_SIMPLE));
  void* counters = view.len == sizeof(Counters) ? view.buf : nullptr;
  PyBuffer_Release(&view);
  TORCH_CHECK(counters != nullptr, "counters of another layout");
  return static_cast<volatile Counters*>(counters);
}

// What of an offload block an op needs. All is read and changed with Python's lock held.
struct Block {
  Block(PyObject* hook, PyObject* ledger, const volatile uint32_t* attention, bool hides_mode)
      : hook(borrowed(hook)),
        ledger(borrowed(ledger)),
        steps(attribute(hook, names()._steps)),
        heap(attribute(hook, names()._heap)),
        updates(attribute(hook, names().updates)),
        no_uses(checked(PyDict_New())),
        session(attribute(hook, names()._session), ledger, attribute(steps.get(), names()._performer)),
        counters(counters_of(ledger)),
        attention(attention),
        hides_mode(hides_mode) {}

  // The storages of an op that is running stay where they are while another thread brings one back.
  void begin_uses(PyObject* uses) const { checked(PyObject_SetAttr(hook.get(), names()._uses, uses)); }
  void end_uses() const {
    Gil gil;
    begin_uses(no_uses.get());
  }

  void remember(uint64_t key, int64_t born) {
    if (foresight.size() >= FORESIGHT_ENTRIES_MAX) foresight.clear();
    foresight[key] = born;
  }

  void tell_heap() {
    if (allocated < TOLD_EVERY) return;
    call(heap.get(), names().allocated, checked(PyLong_FromLongLong(allocated.exchange(0))).get());
  }

  const Held hook, ledger, steps, heap;
  const Held updates;  // a dict of the optimizer's updates that have not run
  const Held no_uses;
  const LibrarySession session;
  volatile Counters* const counters;
  const volatile uint32_t* attention;  // not 0 while completions wait
  const bool hides_mode;               // whether autograd finds no mode, also where tensors move

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

// The same for looks without Python's lock: whether there is one, and its mode where autograd shall not find that.
std::atomic<bool> is_open{false};
std::atomic<PyObject*> hidden_mode{nullptr};

PyObject* get_compiler = nullptr;  // says what torch.compile looks at entered frames with now

// Whether it looks at any.
bool has_compiler() {
  static PyObject* no_arguments = checked(PyTuple_New(0)).release();
  int flags = PyCFunction_CheckExact(get_compiler) ? PyCFunction_GET_FLAGS(get_compiler) : 0;
  bool is_direct = flags == METH_VARARGS || flags == METH_NOARGS;  // a call through Python costs as much as an attribute
  return checked(is_direct ? PyCFunction_GET_FUNCTION(get_compiler)(PyCFunction_GET_SELF(get_compiler), no_arguments)
                           : PyObject_CallNoArgs(get_compiler))
             .get() != Py_None;
}

// The only mode of this thread; null: there is none, or others see ops in Python.
PyObject* mode_of_this_thread() {
  using Modes = c10::impl::TorchDispatchModeTLS;
  return Modes::stack_len() == 1 ? Modes::get_stack_at(0)->ptr(getPyInterpreter()) : nullptr;
}

std::shared_ptr<Block> block_of_this_thread() {
  const auto& block = open_block();
  return block && mode_of_this_thread() == block->hook.get() ? block : nullptr;
}

// Where a storage was born, as records have it.
Held place_of(int64_t index, int64_t slot, PyObject* name) {
  return checked(Py_BuildValue("(LLO)", static_cast<long long>(index), static_cast<long long>(slot), name));
}

// Gives a storage that Python has not met its record, as `Ledger.register` and `born` do.
Held meet(const Block& block, const c10::Storage& storage, Unmet* entry) {
  PyObject* ledger = block.ledger.get();
  const Birth birth = entry->birth;
  const int64_t size = entry->size;
  Held object = checked(THPStorage_Wrap(storage));
  Held made_by = birth.index < 0 ? borrowed(birth.func) : place_of(birth.index, birth.slot, birth.name);
  Held type = attribute(ledger, names()._record_type), on_death = attribute(ledger, names()._on_death);
  Held record = checked(PyObject_CallFunctionObjArgs(type.get(), object.get(), on_death.get(), nullptr));
  set_number(record.get(), names().size, size);
  checked(PyObject_SetAttr(record.get(), names().birth, made_by.get()));
  if (entry->number < 0) {
    checked(PyList_Append(attribute(ledger, names().births).get(), record.get()));
  } else {  // the session knows it already
    Held id = checked(PyLong_FromLongLong(entry->number));
    checked(PyObject_SetAttr(record.get(), names().id, id.get()));
    checked(PyObject_SetAttr(record.get(), names().reported, Py_True));
    checked(PyObject_SetItem(attribute(ledger, names().records).get(), id.get(), record.get()));
  }
  // From here on it counts there, and no longer here.
  checked(PyObject_SetAttr(object.get(), names()._tide, record.get()));
  unmet().meet(entry);
  block.counters->counted += size;
  return record;
}

// Whether an update that has not run hangs on a storage.
bool has_update(const Block& block, const c10::StorageImpl& storage) {
  if (PyDict_GET_SIZE(block.updates.get()) == 0) return false;
  PyObject* object = storage.pyobj_slot()->load_pyobj();
  return object != nullptr && attribute(object, names()._tide_update).get() != Py_None;
}

// The record of a storage that Python has an object of; null: it has none.
Held record_in(PyObject* storage) {
  Held record = attribute(storage, names()._tide);
  return record.get() == Py_None ? Held(nullptr) : std::move(record);
}

}  // namespace tidelog
