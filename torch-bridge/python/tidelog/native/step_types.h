// The steps of a block, for Python.
#pragma once

#include "step.h"
#include "types.h"

namespace tidelog::types {

struct StepObject {
  PyObject_HEAD;
  Step* step;
  PyObject* ledger;  // which it is about
};

inline PyTypeObject STEP = {PyVarObject_HEAD_INIT(nullptr, 0) "tidelog.Step"};

inline Step& step_in(PyObject* object) { return *reinterpret_cast<StepObject*>(object)->step; }

inline int make_step(PyObject* object, PyObject* args, PyObject*) {
  return guarded_setter([&] {
    auto [ledger] = arguments_in<1>(args);
    TORCH_CHECK_TYPE(Py_TYPE(ledger) == &LEDGER, "expected a ledger");
    auto* self = reinterpret_cast<StepObject*>(object);
    self->step = new Step(ledger_in(ledger));
    self->ledger = Py_NewRef(ledger);
  });
}

inline void end_step(PyObject* object) {
  auto* self = reinterpret_cast<StepObject*>(object);
  delete std::exchange(self->step, nullptr);
  Py_XDECREF(std::exchange(self->ledger, nullptr));
  Py_TYPE(object)->tp_free(object);
}

// A dict: number of a storage -> 0 or `MODIFIES`.
inline Uses uses_in(PyObject* dict) {
  Uses uses;
  PyObject *number, *use;
  for (Py_ssize_t place = 0; PyDict_Next(dict, &place, &number, &use);)
    uses.push_back(static_cast<uint32_t>(number_in(number) | number_in(use)));
  return uses;
}

inline PyObject* dict_of(const Uses& uses) {
  Held dict = checked(PyDict_New());
  for (uint32_t use : uses)
    checked(PyDict_SetItem(dict.get(), checked(number(Step::storage_in(use))).get(),
                           checked(number(use & MODIFIES)).get()));
  return dict.release();
}

inline size_t plan_of(Step& step, PyObject* due) {
  char* bytes;
  Py_ssize_t size;
  checked(PyBytes_AsStringAndSize(due, &bytes, &size));
  return step.plan({bytes, static_cast<size_t>(size)});
}

#define METHOD(name, flags, help, ...) TIDELOG_METHOD(name, flags, help, Step& step = step_in(self), __VA_ARGS__)
#define FLAG(name, member, help)                                                                       \
  {name, [](PyObject* self, void*) { return guarded([&] { return boolean(step_in(self).member); }); }, \
   [](PyObject* self, PyObject* value, void*) {                                                        \
     return guarded_setter([&] { step_in(self).member = truth_in(value); });                           \
   },                                                                                                  \
   help, nullptr}

inline PyMethodDef STEP_METHODS[] = {
    METHOD("plan", METH_O, "Steps follow the session's plan; returns how many ops it has.",
           return number(static_cast<int64_t>(plan_of(step, given)))),
    METHOD("forget_plan", METH_NOARGS, "They are profiled again.", step.forget_plan()),
    METHOD("forget_profile", METH_NOARGS, "The ops that were profiled are known to the session.",
           step.forget_profile()),
    METHOD("leave", METH_NOARGS, "What follows is in no step.", step.leave()),
    METHOD("end_op", METH_NOARGS, "The op has run; waits until the budget holds.", step.end_op()),
    METHOD("touch", METH_O, "Makes storages ready for an access that is no op.", step.touch(uses_in(given))),
    METHOD("end_touch", METH_NOARGS, "What was brought back for one may leave again.", step.end_touch()),
    METHOD("running_uses", METH_NOARGS, "What the op uses that runs.", return dict_of(step.uses)),
    {nullptr, nullptr, 0, nullptr},
};

inline PyGetSetDef STEP_MEMBERS[] = {
    {"next_op", [](PyObject* self, void*) { return guarded([&] { return number(step_in(self).next_op); }); },
     [](PyObject* self, PyObject* value, void*) {
       return guarded_setter([&] { step_in(self).next_op = number_in(value); });
     },
     "Outside a step below zero; inside, the index of the next op.", nullptr},
    FLAG("follows", follows, "Whether the step is as planned so far."),
    FLAG("profiles", profiles, "Whether a plan is wanted, and there is none yet."),
    {"has_plan", [](PyObject* self, void*) { return guarded([&] { return boolean(step_in(self).has_plan()); }); },
     nullptr, "Whether steps follow one.", nullptr},
    {"has_profile", [](PyObject* self, void*) { return guarded([&] { return boolean(step_in(self).has_profile()); }); },
     nullptr, "Whether ops of a step were profiled.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

#undef METHOD
#undef FLAG

inline int ready_step() {
  STEP.tp_basicsize = sizeof(StepObject);
  STEP.tp_flags = Py_TPFLAGS_DEFAULT;
  STEP.tp_new = PyType_GenericNew;
  STEP.tp_init = make_step;
  STEP.tp_dealloc = end_step;
  STEP.tp_getset = STEP_MEMBERS;
  STEP.tp_methods = STEP_METHODS;
  return PyType_Ready(&STEP);
}

}  // namespace tidelog::types
