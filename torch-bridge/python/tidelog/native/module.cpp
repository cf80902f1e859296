// Every op of a block, and of other threads while there is one.
//
// For each op this module registers a kernel at the key `BackendSelect`, below autograd and above what computes. What
// an op uses and makes, where that is and what must come in first is decided here alone (`kernel.h`), for the memory of
// any device. Python does what is rare (`services.h`). Memory that a session asks for is given and taken here, too
// (`performer.h`). Without a block the kernels only call what torch has beneath them.

#include <map>

#include "compat.h"
#include "guards.h"
#include "launch.h"
#include "registrations.h"

using namespace tidelog;

namespace {

// One for each kernel and number of arguments. Never let go of: plans may know them.
Launch& launch_of(PyObject* func, size_t count) {
  static auto* all = new std::map<std::pair<PyObject*, size_t>, Launch>;
  auto [found, is_new] = all->try_emplace({func, count});
  if (is_new) Py_INCREF(func);  // another one never has its address
  return found->second;
}

// -- what Python calls --------------------------------------------------------------------------------

// Arguments: what is launched, and what it is launched with.
PyObject* launch(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *func, *arguments, *by_name;
  if (!PyArg_ParseTuple(args, "OO!O!", &func, &PyTuple_Type, &arguments, &PyDict_Type, &by_name)) return nullptr;
  Launched op(func, arguments, by_name);
  return launch_of(func, op.count())(op).release();
  END_HANDLE_TH_ERRORS
}

PyObject* open(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *ledger, *step, *services, *updates, *attention, *held, *waiting;
  if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O!", &types::LEDGER, &ledger, &types::STEP, &step, &PyTuple_Type, &services,
                        &PyDict_Type, &updates, &PyMemoryView_Type, &attention, &PyList_Type, &held, &PyList_Type,
                        &waiting))
    return nullptr;
  Whole::held = borrowed(held).release();
  Whole::waiting = borrowed(waiting).release();
  Whole::thread = pthread_self();
  auto waits = static_cast<const volatile uint32_t*>(PyMemoryView_GET_BUFFER(attention)->buf);
  Registrations::all().bring_up_to_date();
  open_block() = std::shared_ptr<Block>(new Block(ledger, step, services, updates, waits), End());
  Workers::begin();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* observe(PyObject*, PyObject* function) {
  HANDLE_TH_ERRORS
  if (open_block()) open_block()->observer = function == Py_None ? Held(nullptr) : borrowed(function);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* storages_have(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  if (!PyArg_ParseTuple(args, "OO", &Ledger::update_of, &Ledger::aliased_of)) return nullptr;
  Py_INCREF(Ledger::update_of);
  Py_INCREF(Ledger::aliased_of);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* close(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  Workers::end();
  open_block() = nullptr;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* meet_new_ops(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  Registrations::all().bring_up_to_date();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* is_inside(PyObject*, PyObject*) { return PyBool_FromLong(where() == Where::inside); }

PyObject* finalizers_begin(PyObject*, PyObject*) {
  bool are_inside = where() == Where::inside;
  if (are_inside) move_to(Where::in_finalizer);
  return PyBool_FromLong(are_inside);
}

PyObject* finalizers_end(PyObject*, PyObject*) {
  move_to(Where::inside);
  Py_RETURN_NONE;
}

PyObject* works(PyObject*, PyObject* does) {
  works_for_block = does == Py_True;
  Py_RETURN_NONE;
}

PyObject* works_here(PyObject*, PyObject*) {
  return PyBool_FromLong(Workers::is_open() && Workers::have_this_thread());
}

PyObject* is_busy(PyObject*, PyObject*) { return PyBool_FromLong(Whole::depth != 0); }

PyObject* is_under_way(PyObject*, PyObject*) { return PyBool_FromLong(Whole::depth != 0 || UnderWay::count != 0); }

PyObject* is_under_way_here(PyObject*, PyObject*) { return PyBool_FromLong(Whole::here != 0 || UnderWay::here != 0); }

PyObject* passed_ops(PyObject*, PyObject*) { return PyLong_FromLongLong(passed); }

PyObject* performed_requests(PyObject*, PyObject*) { return PyLong_FromLongLong(performed); }

PyObject* connect(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *session, *ledger, *requests, *parts, *allocated, *wait_ms, *async_uses;
  if (!PyArg_ParseTuple(args, "OO!OOOOO!", &session, &types::LEDGER, &ledger, &requests, &parts, &allocated, &wait_ms,
                        &PyTuple_Type, &async_uses))
    return nullptr;
  auto performer = std::make_unique<Performer>(types::ledger_in(ledger), requests, parts, allocated, wait_ms);
  return Performer::connected(session, std::move(performer), async_uses);
  END_HANDLE_TH_ERRORS
}

PyMethodDef METHODS[] = {
    {"launch", launch, METH_VARARGS, "Launches a kernel, as an op."},
    {"open", open, METH_VARARGS, "A block begins."},
    {"close", close, METH_NOARGS, "It ends."},
    {"connect", connect, METH_VARARGS, "Has a session call back, as long as what is returned lives."},
    {"observe", observe, METH_O, "Each op that is looked at in full is passed to this function from here on."},
    {"storages_have", storages_have, METH_VARARGS,
     "How Python has an update that hangs on a storage, and whether somebody has its address."},
    {"is_busy", is_busy, METH_NOARGS, "Whether it is in the middle of something that runs as a whole."},
    {"is_under_way", is_under_way, METH_NOARGS, "The same, or an op is under way past Python."},
    {"is_under_way_here", is_under_way_here, METH_NOARGS, "The same of this thread alone."},
    {"record_in", types::record_in_block, METH_O, "The record of a storage; None: no block counts it."},
    {"update_on", types::update_on, METH_O,
     "The update that hangs on a storage, and has not run; None: there is none."},
    {"record_for", types::record_for, METH_O,
     "The record of a storage; it is made, in no ledger, where there is none."},
    {"passed", passed_ops, METH_NOARGS, "How many ops needed nothing of Python's so far."},
    {"performed", performed_requests, METH_NOARGS, "How many requests were not done in Python so far."},
    {"meet_new_ops", meet_new_ops, METH_NOARGS, "Ops may have come: each has a kernel from here on."},
    {"is_inside", is_inside, METH_NOARGS, "Whether this thread is inside an op."},
    {"finalizers_begin", finalizers_begin, METH_NOARGS,
     "Finalizers begin to run in this thread; returns whether it is inside an op, which `finalizers_end` has to "
     "follow."},
    {"finalizers_end", finalizers_end, METH_NOARGS, "They have run, inside an op."},
    {"works", works, METH_O, "Whether this thread works for the block, whatever torch says."},
    {"works_here", works_here, METH_NOARGS, "Whether it works for the block that is open."},
    {"take", moves::take, METH_VARARGS, "Frees a storage's memory, and guards it."},
    {"empty", moves::empty, METH_VARARGS, "The same, and its size is 0 then."},
    {"give", moves::give, METH_VARARGS, "Gives a storage memory, and returns its address."},
    {"swap", moves::swap, METH_VARARGS, "Exchanges the memory of two storages."},
    {"discard", moves::discard, METH_O, "Makes a storage an empty one without a guard."},
    {"guard", moves::guard, METH_VARARGS, "Guards a storage."},
    {"open_to_reads", moves::open_to_reads, METH_O, "Lifts the guard."},
    {"use_allocator", moves::use_allocator, METH_VARARGS, "Has torch allocate host memory by these functions."},
    {"without_memory", moves::without_memory, METH_VARARGS, "A storage that has a size alone."},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_tidelog_native", nullptr, -1, METHODS};

}  // namespace

PyMODINIT_FUNC PyInit__tidelog_native() {
  if (types::ready() < 0 || types::ready_step() < 0 || types::ready_guards() < 0) return nullptr;
  PyObject* module = PyModule_Create(&MODULE);
  if (module == nullptr) return nullptr;
  for (auto [name, type] :
       {std::pair("Ledger", &types::LEDGER), std::pair("Step", &types::STEP), std::pair("RecordOf", &types::RECORD_OF),
        std::pair("Streams", &types::STREAMS), std::pair("Unseen", &types::UNSEEN),
        std::pair("Between", &types::BETWEEN), std::pair("Seen", &types::SEEN)})
    if (PyModule_AddObjectRef(module, name, reinterpret_cast<PyObject*>(type)) < 0) {
      Py_DECREF(module);
      return nullptr;
    }
  return module;
}
