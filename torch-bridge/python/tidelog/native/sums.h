// Sums of gradients, as autograd's engine makes them where no dispatch mode is entered: in place, if nobody else has
// the sum so far. By torch, whoever has an object in Python of a storage has it. But what was met in Python, as all
// that has moved was, keeps that object as long as it lives. Sums would be in place or not by what has moved, and no
// plan would hold. So they are in place here wherever nobody but such an object has the storage: for each program
// always the same ones, which are those of the program without a block.
//
// A sum that somebody else has must never change. So what is added to has to be in the engine's own place for it, and
// the references to it are counted one by one; where anything is not as it is known here, the sum is out of place.
#pragma once

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>

#include "compat.h"
#include "tensors.h"

namespace tidelog {

// Autograd's engine, as this thread runs it.
template <class Task>
class Engine {
 public:
  // Whether what it does can be told: in a torch that it was tried with, with a C library that says who has a lock.
  static constexpr bool is_known = knows_engine(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR) && requires(Task& task) {
    task.mutex_.native_handle()->__data.__owner;
    task.not_ready_.begin()->second.buffer;
  };

  // Whether it adds to this tensor now. It has the lock of its task then, which it has only between two nodes. And the
  // tensor is what it has added up so far for another node. Nobody else can ask for a sum with it and hold no
  // reference.
  static bool adds_to(const at::Tensor& sum) {
    if constexpr (is_known) {
      Task* task = current();
      if (task == nullptr || task->mutex_.native_handle()->__data.__owner != thread_of_kernel()) return false;
      for (const auto& [node, inputs] : task->not_ready_)
        for (const at::Tensor& each : inputs.buffer)
          if (each.is_same(sum)) return true;
    }
    return false;
  }

 private:
  static Task* current() {
    auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
    auto* infos = torch::autograd::get_current_graph_task_exec_info();
    if (nodes == nullptr || infos == nullptr) return nullptr;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // every compiler that builds torch has it
    constexpr size_t to_nodes = offsetof(Task, nodes_in_graph_), to_infos = offsetof(Task, exec_info_);
#pragma GCC diagnostic pop
    auto* begin = reinterpret_cast<const char*>(nodes) - to_nodes;
    if (reinterpret_cast<const char*>(infos) - to_infos != begin) return nullptr;  // they are kept elsewhere
    return const_cast<Task*>(reinterpret_cast<const Task*>(begin));
  }
};

using AutogradEngine = Engine<torch::autograd::GraphTask>;

// Whether torch could add in place, as far as the two tensors go: `can_accumulate_inplace` of its engine.
bool can_be_in_place(const at::Tensor& sum, const at::Tensor& other) {
  if (at::GradMode::is_enabled() || at::isTensorSubclassLike(sum) || at::isTensorSubclassLike(other)) return false;
  if (!is_plain(sum) || !is_plain(other) || sum.device() != other.device()) return false;
  if (sum.is_inference() || sum._is_zerotensor() || !sum.is_non_overlapping_and_dense()) return false;
  if (sum.sizes() != other.sizes() || sum.scalar_type() != other.scalar_type()) return false;
  return !sum._fw_grad(/*level=*/0).defined() && !other._fw_grad(/*level=*/0).defined();
}

// How many references to a storage's object in Python are held because parts of its memory move.
Py_ssize_t references_of_parts(const c10::StorageImpl& storage) {
  const Record* record = Records::of(storage);
  return record != nullptr && record->parted != nullptr ? size_of(attribute(record->parted, names().moving).get()) : 0;
}

// How many stacks hold the arguments of a call that comes by one: ours, and that of torch's look at a thread's keys.
size_t stacks_of_call() {
  const auto& keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_.has(DispatchKey::PythonTLSSnapshot) && !keys.excluded_.has(DispatchKey::PythonTLSSnapshot) ? 2
                                                                                                                   : 1;
}

// Memory that is no allocator's may be that of others, too, who do not count here: an array, another process.
bool has_own_memory(const c10::StorageImpl& storage) {
  const Record* record = Records::of(storage);
  return (record != nullptr && record->is_owner) || Records::is_allocators(storage);
}

// Whether none but the engine has a tensor that is an argument here, and none but the tensor its memory, for all that
// either has an object in Python, and `stacks` stacks have the tensor. Such an object is a reference, and has one from
// what it is the object of.
bool has_no_other(const at::Tensor& tensor, size_t stacks) {
  const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  PyObject *wrapper = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj(),
           *object = storage.pyobj_slot()->load_pyobj();
  if (object == nullptr || !has_own_memory(storage)) return false;  // without an object, torch has had another reason
  if (tensor.storage().use_count() != /*tensor*/ 1 + /*object*/ 1) return false;
  if (tensor.use_count() != /*engine*/ 1 + (wrapper != nullptr) + stacks) return false;
  if (!AutogradEngine::adds_to(tensor)) return false;
  Gil gil;
  return (wrapper == nullptr || Py_REFCNT(wrapper) == 1) && Py_REFCNT(object) == 1 + references_of_parts(storage);
}

// Whether it is the op that may become one in place.
bool is_sum(const c10::OperatorHandle& op) {
  static const auto sum = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  return op == sum;
}

// Whether autograd has `add_` in mind, and calls `add` just for an object in Python. Then `add_` is to follow.
bool becomes_in_place(const at::Tensor& sum, const at::Tensor& other, const at::Scalar& alpha, size_t stacks) {
  if (!alpha.isIntegral(/*includeBool=*/false) || alpha.toLong() != 1 || !can_be_in_place(sum, other)) return false;
  if (!has_no_other(sum, stacks)) return false;
  sum.unsafeGetTensorImpl()->bump_version();  // as a kernel of `add_` does that this op has passed
  return true;
}

// The op that autograd has in mind.
const c10::OperatorHandle& sum_in_place_of(const c10::OperatorHandle& op, const Stack& stack) {
  static const auto in_place = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add_", "Tensor");
  if (!AutogradEngine::is_known || !is_sum(op)) return op;
  const c10::IValue *sum = &stack[stack.size() - 3], *other = sum + 1, *alpha = sum + 2;
  return becomes_in_place(sum->toTensor(), other->toTensor(), alpha->toScalar(), stacks_of_call()) ? in_place : op;
}

}  // namespace tidelog
