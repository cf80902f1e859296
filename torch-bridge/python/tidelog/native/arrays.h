// Memory of NumPy's arrays: what `torch.from_numpy` gives a storage, which has a reference to the array. Where that is
// the only one nobody can tell whether the bytes are in the array's memory or in other.
#pragma once

#include <c10/core/Allocator.h>

#include <functional>
#include <typeinfo>

#include "python.h"

namespace tidelog {

class Arrays {
 public:
  // Learns from an example how torch has an array. Where it has them in another way none is known, and all stay.
  static void learn(const c10::DataPtr& memory, PyObject* array) {
    const auto* context = static_cast<const Context*>(memory.get_context());
    if (context == nullptr || context->ptr_ != memory.get() || captured_by(context->deleter_) != array) return;
    type_ = Py_TYPE(array);
    end_ = &context->deleter_.target_type();
    deleter_ = memory.get_deleter();
  }

  // Returns whether memory is an array's that torch has a reference to.
  static bool is_array(const c10::DataPtr& memory) {
    if (deleter_ == nullptr || memory.get_deleter() != deleter_) return false;
    return context_of(memory).deleter_.target_type() == *end_;
  }

  // Returns whether nothing but torch has the array, or what that is a view of. With Python's lock held.
  static bool is_alone(const c10::DataPtr& memory) {
    Held array = borrowed(captured_by(context_of(memory).deleter_));
    // One reference is ours, and one torch's or the view's.
    while (is_plain(array.get()) && Py_REFCNT(array.get()) == 2) {
      Held base = attribute(array.get(), "base");
      if (base.get() == Py_None) return owns_its_memory(array.get());
      array = std::move(base);
    }
    return false;
  }

 private:
  using Context = c10::InefficientStdFunctionContext;

  static const Context& context_of(const c10::DataPtr& memory) {
    return *static_cast<const Context*>(memory.get_context());
  }

  // The one pointer that a small function object has.
  static PyObject* captured_by(const std::function<void(void*)>& function) {
    return *reinterpret_cast<PyObject* const*>(&function);
  }

  static Held attribute(PyObject* object, const char* name) { return checked(PyObject_GetAttrString(object, name)); }

  // Returns whether an object is an array of no subclass, to which nothing has a weak reference.
  static bool is_plain(PyObject* object) {
    if (Py_TYPE(object) != type_) return false;
    auto offset = type_->tp_weaklistoffset;
    return offset <= 0 || *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset) == nullptr;
  }

  static bool owns_its_memory(PyObject* array) {
    return attribute(attribute(array, "flags").get(), "owndata").get() == Py_True;
  }

  static inline c10::DeleterFnPtr deleter_ = nullptr;
  static inline PyTypeObject* type_ = nullptr;  // of arrays
  static inline const std::type_info* end_ = nullptr;  // of what gives the reference back
};

}  // namespace tidelog
