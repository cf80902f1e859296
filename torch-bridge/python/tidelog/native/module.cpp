// Every op of a block, and of other threads while there is one.
//
// For each op this module registers a kernel at the key `BackendSelect`, below autograd and above what computes. To do
// all that is to be done there in Python would cost two to five microseconds an op, more than many ops take. So a
// kernel does what `Hook` would do on its three paths, which `_hook.py` describes; wherever it is not sure, it calls
// that. So all that is decided here is decided in `_hook.py` too, in the same way. Memory that a session asks for is
// given and taken here, too (`performer.h`). Without a block the kernels only call what torch has beneath them.

#include <unordered_map>

#include "compat.h"
#include "guards.h"
#include "launch.h"
#include "registrations.h"

using namespace tidelog;

namespace {

// Never let go of: kernels live as long as the process.
auto& kernels() {
  static auto* all = new std::unordered_map<PyObject*, const Kernel*>;
  return *all;
}

auto& launches() {
  static auto* all = new std::unordered_map<PyObject*, const Launch*>;
  return *all;
}

// -- what Python calls --------------------------------------------------------------------------------

PyObject* adopt(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *func, *text;
  const char *name, *overload;
  unsigned long long written, seed;
  int looks, is_product, repeats;
  if (!PyArg_ParseTuple(args, "OUssKKipp", &func, &text, &name, &overload, &written, &seed, &looks, &is_product,
                        &repeats))
    return nullptr;
  Boxed* kernel = Registrations::all().kernel_of({name, overload});
  if (kernel != nullptr && kernels().emplace(func, kernel).second)
    kernel->adopt(
        std::make_unique<Kernel::Facts>(func, text, written, seed, static_cast<Looks>(looks), is_product, repeats));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* adopt_launch(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *func, *name;
  unsigned long long written, seed;
  int makes;
  Py_ssize_t arguments;
  if (!PyArg_ParseTuple(args, "OUKKpn", &func, &name, &written, &seed, &makes, &arguments)) return nullptr;
  if (kernels().count(func) == 0) {
    auto facts = std::make_unique<Kernel::Facts>(func, name, written, seed, Looks::never, /*is_product=*/false,
                                                 /*repeats=*/false);
    auto* launch = new Launch(std::move(facts), makes, arguments);
    kernels().emplace(func, launch);
    launches().emplace(func, launch);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Arguments: what is launched, what it is launched with, and a function that launches it otherwise.
PyObject* launch(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *func, *arguments, *python;
  if (!PyArg_ParseTuple(args, "OO!O", &func, &PyTuple_Type, &arguments, &python)) return nullptr;
  auto found = launches().find(func);
  if (found == launches().end()) return PyObject_CallFunctionObjArgs(python, func, arguments, nullptr);
  return (*found->second)(arguments, python).release();
  END_HANDLE_TH_ERRORS
}

PyObject* open(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *hook, *bystander, *ledger, *compiler, *attention, *held, *waiting;
  if (!PyArg_ParseTuple(args, "OOOOO!O!O!", &hook, &bystander, &ledger, &compiler, &PyMemoryView_Type, &attention,
                        &PyList_Type, &held, &PyList_Type, &waiting))
    return nullptr;
  Whole::held = borrowed(held).release();
  Whole::waiting = borrowed(waiting).release();
  Whole::thread = pthread_self();
  Py_INCREF(compiler);
  get_compiler = compiler;
  auto waits = static_cast<const volatile uint32_t*>(PyMemoryView_GET_BUFFER(attention)->buf);
  Registrations::all().bring_up_to_date();
  open_block() = std::shared_ptr<Block>(new Block(hook, bystander, ledger, waits), End());
  Workers::begin();
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

PyObject* passed_ops(PyObject*, PyObject*) { return PyLong_FromLongLong(passed); }

PyObject* performed_requests(PyObject*, PyObject*) { return PyLong_FromLongLong(performed); }

PyObject* connect(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *session, *ledger, *performer;
  if (!PyArg_ParseTuple(args, "OOO", &session, &ledger, &performer)) return nullptr;
  return Performer::connected(session, ledger, performer);
  END_HANDLE_TH_ERRORS
}

// Number -> 0 or `MODIFIES`, as the hook has them of an op that it looks at.
PyObject* running_uses(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  Held dict = checked(PyDict_New());
  if (open_block())
    for (uint32_t use : open_block()->uses)
      checked(PyDict_SetItem(dict.get(), checked(PyLong_FromUnsignedLong(use & ~MODIFIES)).get(),
                             checked(PyLong_FromUnsignedLong(use & MODIFIES)).get()));
  return dict.release();
  END_HANDLE_TH_ERRORS
}

PyObject* follow(PyObject*, PyObject* plan) {
  HANDLE_TH_ERRORS
  const auto& block = open_block();
  if (!block) Py_RETURN_NONE;
  block->plan = Held(nullptr);
  if (plan == Py_None) Py_RETURN_NONE;
  Held funcs = attribute(plan, names().funcs), due = attribute(plan, names().due),
       needs = attribute(plan, names().needs);
  size_t count = number(plan, names().ops);
  block->kernels.assign(count, nullptr);
  block->due.assign(PyBytes_AS_STRING(due.get()), PyBytes_AS_STRING(due.get()) + count);
  block->needs.assign(count, 0);
  for (size_t index = 0; index < count; ++index) {
    auto found = kernels().find(PyList_GET_ITEM(funcs.get(), index));
    if (found != kernels().end()) block->kernels[index] = found->second;
    block->needs[index] = number_in(PyList_GET_ITEM(needs.get(), index));
  }
  block->plan = borrowed(plan);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef METHODS[] = {
    {"adopt", adopt, METH_VARARGS, "Has an op go past Python where that changes nothing."},
    {"adopt_launch", adopt_launch, METH_VARARGS, "Knows what is launched from here on."},
    {"launch", launch, METH_VARARGS, "Launches it as an op, or has a function do so."},
    {"open", open, METH_VARARGS, "A block begins."},
    {"close", close, METH_NOARGS, "It ends."},
    {"connect", connect, METH_VARARGS, "Has a session call back, as long as what is returned lives."},
    {"running_uses", running_uses, METH_NOARGS, "What the op uses that runs and was looked at in full here."},
    {"is_busy", is_busy, METH_NOARGS, "Whether it is in the middle of something that runs as a whole."},
    {"is_under_way", is_under_way, METH_NOARGS, "The same, or an op is under way past Python."},
    {"record_in", types::record_in_block, METH_O, "The record of a storage; None: no block counts it."},
    {"update_on", types::update_on, METH_O,
     "The update that hangs on a storage, and has not run; None: there is none."},
    {"record_for", types::record_for, METH_O,
     "The record of a storage; it is made, in no ledger, where there is none."},
    {"passed", passed_ops, METH_NOARGS, "How many ops did not go through Python so far."},
    {"performed", performed_requests, METH_NOARGS, "How many requests were not done in Python so far."},
    {"meet_new_ops", meet_new_ops, METH_NOARGS, "Ops may have come: each has a kernel from here on."},
    {"is_inside", is_inside, METH_NOARGS, "Whether this thread is inside an op."},
    {"finalizers_begin", finalizers_begin, METH_NOARGS,
     "Finalizers begin to run in this thread; returns whether it is inside an op, which `finalizers_end` has to "
     "follow."},
    {"finalizers_end", finalizers_end, METH_NOARGS, "They have run, inside an op."},
    {"works", works, METH_O, "Whether this thread works for the block, whatever torch says."},
    {"works_here", works_here, METH_NOARGS, "Whether it works for the block that is open."},
    {"follow", follow, METH_O, "The block follows this plan in steps that follow one; None: there is none."},
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
  if (!hashes_tuples_as_known()) {
    PyErr_SetString(PyExc_ImportError, "this Python hashes tuples in another way");
    return nullptr;
  }
  if (types::ready() < 0 || types::ready_guards() < 0) return nullptr;
  PyObject* module = PyModule_Create(&MODULE);
  if (module == nullptr) return nullptr;
  for (auto [name, type] : {std::pair("Ledger", &types::LEDGER), std::pair("RecordOf", &types::RECORD_OF),
                            std::pair("Streams", &types::STREAMS), std::pair("Unseen", &types::UNSEEN),
                            std::pair("Between", &types::BETWEEN), std::pair("Seen", &types::SEEN)})
    if (PyModule_AddObjectRef(module, name, reinterpret_cast<PyObject*>(type)) < 0) {
      Py_DECREF(module);
      return nullptr;
    }
  return module;
}
