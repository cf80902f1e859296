// Usual ops, without Python.
//
// Torch hands every op to a dispatch mode in Python, which costs two to five microseconds an op, more than many ops
// take. For the ops of a program this module registers kernels of its own for the dispatch key `Python`. A kernel does
// what `Hook.__torch_dispatch__` would do on its three paths, which `_hook.py` describes; wherever it is not sure, it
// calls what torch has there, and by that the mode. So all that is decided here is decided in `_hook.py` too, in the
// same way. Memory that a session asks for is given and taken here, too (`performer.h`). Without a block the kernels
// only call what torch has there.

#include <unordered_map>

#include "launch.h"
#include "operators.h"
#include "scalar.h"

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

auto& registrations() {
  static auto* all = new std::vector<c10::RegistrationHandleRAII>;
  return *all;
}

c10::KernelFunction kernel_where_hidden(const c10::OperatorHandle& op, const Boxed& kernel, MakeUnboxed* unboxed) {
  using c10::KernelFunction;
  auto otherwise = KernelFunction::makeFromBoxedFunctor(std::make_unique<HandOn>(/*knows_sums=*/true));
  if (is_sum(op))
    return KernelFunction::makeFromUnboxedFunctor<false, Sum>(std::make_unique<Sum>(op, kernel, std::move(otherwise)));
  if (unboxed) return unboxed(op, kernel, DispatchKey::Fake, std::move(otherwise));
  return KernelFunction::makeFromBoxedFunctor(std::make_unique<PassingBoxed>(kernel, std::move(otherwise)));
}

void register_kernels(const c10::OperatorHandle& op, std::unique_ptr<Boxed> kernel) {
  auto add = [&](DispatchKey key, c10::KernelFunction function) {
    registrations().push_back(c10::Dispatcher::singleton().registerImpl(op.operator_name(), key, std::move(function),
                                                                        std::nullopt, nullptr, "tidelog"));
  };
  const Boxed& known = *kernel;
  MakeUnboxed* unboxed = unboxed_kernels_of(op.operator_name());
  auto boxed = c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel));
  add(DispatchKey::Python, unboxed ? unboxed(op, known, DispatchKey::Python, boxed) : boxed);
  // One that autograd takes apart hands on others.
  bool is_whole = !op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
  if (!is_whole || !can_run_without_mode() || op.hasKernelForDispatchKey(DispatchKey::Fake)) return;
  // This first: where it is called, another thread may have met what torch has for the next key.
  add(DispatchKey::Fake, kernel_where_hidden(op, known, unboxed));
  auto hide = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Hide>());
  add(DispatchKey::PythonTLSSnapshot, unboxed ? unboxed(op, known, DispatchKey::PythonTLSSnapshot, hide) : hide);
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
  auto& dispatcher = c10::Dispatcher::singleton();
  auto op = dispatcher.findSchema({name, overload});
  if (kernels().count(func) != 0 || !op || op->hasKernelForDispatchKey(DispatchKey::Python)) Py_RETURN_FALSE;
  if (op->schema().arguments().size() > 64) Py_RETURN_FALSE;
  auto kernel = std::make_unique<Boxed>(*op, func, text, written, seed, static_cast<Looks>(looks), is_product, repeats);
  kernels().emplace(func, kernel.get());
  register_kernels(*op, std::move(kernel));
  Py_RETURN_TRUE;
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
    auto* launch = new Launch(func, name, written, seed, makes, arguments);
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
  PyObject *hook, *ledger, *compiler, *attention, *held, *waiting;
  int hides_mode;
  if (!PyArg_ParseTuple(args, "OOOO!pO!O!", &hook, &ledger, &compiler, &PyMemoryView_Type, &attention, &hides_mode,
                        &PyList_Type, &held, &PyList_Type, &waiting))
    return nullptr;
  Whole::held = borrowed(held).release();
  Whole::waiting = borrowed(waiting).release();
  Whole::thread = pthread_self();
  Py_INCREF(compiler);
  get_compiler = compiler;
  auto waits = static_cast<const volatile uint32_t*>(PyMemoryView_GET_BUFFER(attention)->buf);
  open_block() = std::shared_ptr<Block>(new Block(hook, ledger, waits, hides_mode), End());
  is_open = true;
  hidden_mode = hides_mode ? hook : nullptr;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* close(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  is_open = false;
  hidden_mode = nullptr;
  open_block() = nullptr;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
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

// Calls the first argument with the others, with other keys on this thread.
PyObject* call_with(ThreadKeys keys, PyObject* args, PyObject* kwargs) {
  Held function = checked(PySequence_GetItem(args, 0));
  Held others = checked(PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args)));
  c10::impl::ForceDispatchKeyGuard guard(keys);
  return checked(PyObject_Call(function.get(), others.get(), kwargs)).release();
}

PyObject* run_backward(PyObject*, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  ThreadKeys keys = c10::impl::tls_local_dispatch_key_set();
  auto block = block_of_this_thread();
  if (block && !keys.excluded_.has(DispatchKey::Python) && (block->hides_mode || block->ledger.quiet) &&
      can_run_without_mode())
    keys = without_mode(keys);
  return call_with(keys, args, kwargs);
  END_HANDLE_TH_ERRORS
}

PyObject* run_with_mode(PyObject*, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  ThreadKeys keys = c10::impl::tls_local_dispatch_key_set();
  return call_with(keys.included_.has(DispatchKey::Fake) ? with_mode(keys) : keys, args, kwargs);
  END_HANDLE_TH_ERRORS
}

// A compiled function is about to run, and puts the keys back afterwards that `save` notes. No frame of Python may be
// between: torch would compile it.
PyObject* enter_compiled(PyObject*, PyObject* save) {
  HANDLE_TH_ERRORS
  Held saved = checked(PyObject_CallNoArgs(save));
  ThreadKeys keys = c10::impl::tls_local_dispatch_key_set();
  if (keys.included_.has(DispatchKey::Fake)) c10::impl::_force_tls_local_dispatch_key_set(with_mode(keys));
  return saved.release();
  END_HANDLE_TH_ERRORS
}

// The same where torch notes no keys: it calls one function before the compiled one, and another in any case after it.
thread_local std::vector<ThreadKeys> noted;

PyObject* enter_noted(PyObject*, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  ThreadKeys keys = c10::impl::tls_local_dispatch_key_set();
  Held result = checked(call_with(keys, args, kwargs));
  noted.push_back(keys);
  if (keys.included_.has(DispatchKey::Fake)) c10::impl::_force_tls_local_dispatch_key_set(with_mode(keys));
  return result.release();
  END_HANDLE_TH_ERRORS
}

PyObject* leave_noted(PyObject*, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  Held result = checked(call_with(c10::impl::tls_local_dispatch_key_set(), args, kwargs));
  if (!noted.empty()) {  // empty: the function was called before the block began
    c10::impl::_force_tls_local_dispatch_key_set(noted.back());
    noted.pop_back();
  }
  return result.release();
  END_HANDLE_TH_ERRORS
}

PyObject* why_sums_unknown(PyObject*, PyObject*) {
  if (AutogradEngine::is_known) return PyUnicode_FromString("");
  return PyUnicode_FromFormat("what autograd's engine of torch %s does with this C library is not known",
                              TORCH_VERSION);
}

PyObject* watch_scalars(PyObject*, PyObject* function) {
  HANDLE_TH_ERRORS
  tidelog::watch_scalars(function);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyCFunction with_keywords(PyCFunctionWithKeywords function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

PyMethodDef METHODS[] = {
    {"adopt", adopt, METH_VARARGS, "Registers a kernel for an op; returns whether it has one now."},
    {"adopt_launch", adopt_launch, METH_VARARGS, "Knows what is launched from here on."},
    {"launch", launch, METH_VARARGS, "Launches it as an op, or has a function do so."},
    {"open", open, METH_VARARGS, "A block begins."},
    {"close", close, METH_NOARGS, "It ends."},
    {"connect", connect, METH_VARARGS, "Has a session call back, as long as what is returned lives."},
    {"running_uses", running_uses, METH_NOARGS, "What the op uses that runs and was looked at in full here."},
    {"is_busy", is_busy, METH_NOARGS, "Whether it is in the middle of something that runs as a whole."},
    {"is_under_way", is_under_way, METH_NOARGS, "The same, or an op is under way past Python."},
    {"why_sums_unknown", why_sums_unknown, METH_NOARGS, "Why autograd's sums cannot be told from others, if so."},
    {"record_for", types::record_for, METH_O,
     "The record of a storage; it is made, in no ledger, where there is none."},
    {"passed", passed_ops, METH_NOARGS, "How many ops did not go through Python so far."},
    {"performed", performed_requests, METH_NOARGS, "How many requests were not done in Python so far."},
    {"run_backward", with_keywords(run_backward), METH_VARARGS | METH_KEYWORDS,
     "Calls what runs autograd's engine, which finds no mode."},
    {"run_with_mode", with_keywords(run_with_mode), METH_VARARGS | METH_KEYWORDS,
     "Calls what finds the mode there, too."},
    {"enter_compiled", enter_compiled, METH_O,
     "Notes the keys of this thread by a function, and finds the mode again."},
    {"enter_noted", with_keywords(enter_noted), METH_VARARGS | METH_KEYWORDS,
     "Calls a function, notes the keys of this thread, and finds the mode again."},
    {"leave_noted", with_keywords(leave_noted), METH_VARARGS | METH_KEYWORDS,
     "Puts back the keys that were noted last, and calls a function."},
    {"watch_scalars", watch_scalars, METH_O, "Has a function bring back what C++ reads a number of."},
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
  if (types::ready() < 0) return nullptr;
  PyObject* module = PyModule_Create(&MODULE);
  if (module == nullptr) return nullptr;
  for (auto [name, type] : {std::pair("Ledger", &types::LEDGER), std::pair("RecordOf", &types::RECORD_OF),
                            std::pair("Streams", &types::STREAMS)})
    if (PyModule_AddObjectRef(module, name, reinterpret_cast<PyObject*>(type)) < 0) {
      Py_DECREF(module);
      return nullptr;
    }
  return module;
}
