// Guards that decide where ops of a thread are seen, and where not: the same for Python, as context managers.
#pragma once

#include "thread.h"

namespace tidelog::types {

// Hides ops of this thread from the block.
struct Inside {
  At inside{Where::inside};
};

// Hides ops of this thread: no mode, no block.
struct Unseen : Inside {
  c10::impl::ExcludeDispatchKeyGuard no_mode{DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot})};
};

// Puts this thread between two ops: what it does inside one is seen.
struct BetweenOps {
  At between{Where::between};
};

// Makes ops of this thread the block's, also inside an op, and in a thread that is none of the block's.
struct Seen {
  Seen() : works_before(std::exchange(works_for_block, true)) {}
  Seen(const Seen&) = delete;
  Seen& operator=(const Seen&) = delete;
  ~Seen() { works_for_block = works_before; }

  const bool works_before;
  At between{Where::between};
};

template <class Guard>
struct Scope {
  std::unique_ptr<Guard> guard;  // while it is entered
};

template <class Guard>
void add_guard(py::module_& m, const char* name) {
  py::class_<Scope<Guard>>(m, name, py::module_local())
      .def(py::init<>())
      .def("__enter__", [](Scope<Guard>& scope) { scope.guard = std::make_unique<Guard>(); })
      .def("__exit__", [](Scope<Guard>& scope, const py::args&) { scope.guard.reset(); });
}

}  // namespace tidelog::types
