// Services in Python for ops: what is rare, and what is done once for an op. The functions come with the block.
#pragma once

#include "thread.h"

namespace tidelog {

// The members are in the order of `Services` in `_hook.py`, which says what each does.
struct Services {
  explicit Services(PyObject* functions) {
    Py_ssize_t place = 0;
    for (Held* each : {&facts, &expect, &touch_updates, &in_python, &compose, &bystander, &began, &look, &left_plan,
                       &make_room, &make_usual, &refuse_in_child, &give_way, &allocated, &get_compiler, &set_compiler})
      *each = borrowed(checked(PySequence_GetItem(functions, place++)).get());
  }

  // Calls one. Ops that it runs itself are seen by nobody: neither by the block, nor by autograd, nor by modes.
  template <class... Arguments>
  static Held call(const Held& function, Arguments... arguments) {
    return checked(try_call(function, arguments...));
  }

  // Calls a service; null: it has raised an error.
  template <class... Arguments>
  static PyObject* try_call(const Held& function, Arguments... arguments) {
    c10::impl::ExcludeDispatchKeyGuard none_above(ABOVE);
    At inside(Where::inside);
    return PyObject_CallFunctionObjArgs(function.get(), arguments..., nullptr);
  }

  Held facts{nullptr}, expect{nullptr}, touch_updates{nullptr}, in_python{nullptr}, compose{nullptr},
      bystander{nullptr}, began{nullptr}, look{nullptr}, left_plan{nullptr}, make_room{nullptr}, make_usual{nullptr},
      refuse_in_child{nullptr}, give_way{nullptr}, allocated{nullptr}, get_compiler{nullptr}, set_compiler{nullptr};
};

// Keeps torch.compile from looking at frames that are entered here: what is called in Python here is no part of the
// program.
class Apart {
 public:
  explicit Apart(const Services& python) : python_(python) {
    if (checked(PyObject_CallNoArgs(python.get_compiler.get())).get() != Py_None)
      before_ = checked(PyObject_CallOneArg(python.set_compiler.get(), Py_None));
  }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;
  ~Apart() {
    if (before_.get() != nullptr) Held(PyObject_CallOneArg(python_.set_compiler.get(), before_.get()));
  }

 private:
  const Services& python_;
  Held before_{nullptr};
};

}  // namespace tidelog
