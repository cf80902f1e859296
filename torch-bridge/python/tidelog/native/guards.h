// Where ops of a thread are seen, and where not: the same for Python, as context managers.
#pragma once

#include "guarded.h"
#include "thread.h"

namespace tidelog::types {

// Meanwhile ops of this thread come to nobody: no mode, no block.
struct UnseenGuard {
  At inside{Where::inside};
  c10::impl::ExcludeDispatchKeyGuard no_mode{DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot})};
};

// Meanwhile this thread is between two ops: what it does inside one is seen.
struct BetweenGuard {
  At between{Where::between};
};

// Meanwhile ops of this thread are the block's, also inside an op, and in a thread that is none of the block's.
struct SeenGuard {
  SeenGuard() : works_before(std::exchange(works_for_block, true)) {}
  SeenGuard(const SeenGuard&) = delete;
  SeenGuard& operator=(const SeenGuard&) = delete;
  ~SeenGuard() { works_for_block = works_before; }

  const bool works_before;
  At between{Where::between};
};

template <class Guard>
struct GuardObject {
  PyObject_HEAD Guard* guard;
};

template <class Guard>
void end_guard(PyObject* self) {
  delete std::exchange(reinterpret_cast<GuardObject<Guard>*>(self)->guard, nullptr);
}

template <class Guard>
PyMethodDef* methods_of_guard() {
  static PyMethodDef methods[] = {
      {"__enter__",
       [](PyObject* self, PyObject*) -> PyObject* {
         end_guard<Guard>(self);
         reinterpret_cast<GuardObject<Guard>*>(self)->guard = new Guard;
         return none();
       },
       METH_NOARGS, nullptr},
      {"__exit__",
       [](PyObject* self, PyObject*) -> PyObject* {
         end_guard<Guard>(self);
         return none();
       },
       METH_VARARGS, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  return methods;
}

inline PyTypeObject UNSEEN = {PyVarObject_HEAD_INIT(nullptr, 0) "tidelog.Unseen"};
inline PyTypeObject BETWEEN = {PyVarObject_HEAD_INIT(nullptr, 0) "tidelog.Between"};
inline PyTypeObject SEEN = {PyVarObject_HEAD_INIT(nullptr, 0) "tidelog.Seen"};

template <class Guard>
int ready_guard(PyTypeObject& type) {
  type.tp_basicsize = sizeof(GuardObject<Guard>);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_new = PyType_GenericNew;
  type.tp_dealloc = [](PyObject* self) {
    end_guard<Guard>(self);
    Py_TYPE(self)->tp_free(self);
  };
  type.tp_methods = methods_of_guard<Guard>();
  return PyType_Ready(&type);
}

inline int ready_guards() {
  bool are_ready = ready_guard<UnseenGuard>(UNSEEN) >= 0 && ready_guard<BetweenGuard>(BETWEEN) >= 0 &&
                   ready_guard<SeenGuard>(SEEN) >= 0;
  return are_ready ? 0 : -1;
}

}  // namespace tidelog::types
