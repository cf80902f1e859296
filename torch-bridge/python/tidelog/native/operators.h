// The operators that have kernels of `unboxed.h`: most of the ops of usual programs. Each costs the build a tenth of a
// second.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/new_empty_strided_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/select_backward_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/slice_backward_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zeros_like_ops.h>

#include "unboxed.h"

namespace tidelog {

// clang-format off
#define TIDELOG_OPERATORS \
  OP(_to_copy) OP(_unsafe_view) OP(add_Tensor) OP(add__Tensor) OP(addcdiv_) OP(addcmul_) OP(addmm) OP(alias) \
  OP(as_strided) OP(bmm) OP(clone) OP(copy_) OP(detach) OP(div_Scalar) OP(div_Tensor) OP(eq_Tensor) OP(exp) \
  OP(expand) OP(gt_Tensor) OP(lerp__Scalar) OP(lt_Tensor) OP(masked_fill_Scalar) OP(maximum) OP(mm) \
  OP(mul_Scalar) OP(mul_Tensor) OP(mul__Tensor) OP(neg) OP(new_empty_strided) OP(permute) \
  OP(pow_Tensor_Scalar) OP(rsqrt) OP(select_backward) OP(select_int) OP(slice_Tensor) OP(slice_backward) \
  OP(sqrt) OP(squeeze_dim) OP(sub_Tensor) OP(sum_dim_IntList) OP(t) OP(transpose_int) OP(unsqueeze) OP(view) \
  OP(where_self) OP(zeros_like)
// clang-format on

// Function that makes an operator's kernel.
using MakeUnboxed = c10::KernelFunction(const c10::OperatorHandle&, const Kernel&, c10::KernelFunction);

// Null: the operator has none.
MakeUnboxed* unboxed_kernel_of(const c10::OperatorName& name) {
  using All = std::unordered_map<c10::OperatorName, MakeUnboxed*>;
#define OP(op) {{at::_ops::op::name, at::_ops::op::overload_name}, Unboxed<at::_ops::op>::make},
  static const auto* all = new All{TIDELOG_OPERATORS};
#undef OP
  auto found = all->find(name);
  return found != all->end() ? found->second : nullptr;
}

}  // namespace tidelog
