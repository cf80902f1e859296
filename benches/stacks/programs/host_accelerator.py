"""The host as torchtitan's accelerator: what it asks of a device, of collectives and of attention, on a processor.

torchtitan takes "cuda" where torch knows of no accelerator, and sets that device. What is imported here before it has
torch answer that the accelerator is the processor. Two more things are made for GPUs alone: FSDP2 multiplies within a
collective, for which gloo has no operation, so that it is told to add and then multiply; and FlexAttention has no
backward pass on processors. torchtitan's option `--override.imports` takes `causal` in its place.
"""

import resource
import types

import torch._utils
from torch.distributed.fsdp import FSDPModule

torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.current_device = lambda: 0
torch.cpu.get_device_name = lambda device=None: "a processor"
torch.cpu.get_device_properties = lambda device=None: types.SimpleNamespace(total_memory=1 << 40)
torch.cpu.memory_stats = lambda device=None: {
    "active_bytes.all.peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None

from torchtitan.config.override import override  # noqa: E402
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention  # noqa: E402

set_factor = FSDPModule.set_gradient_divide_factor


def set_factor_of_sums(module, factor):
    module.set_force_sum_reduction_for_comms(True)
    set_factor(module, factor)


FSDPModule.set_gradient_divide_factor = set_factor_of_sums


@override(target=FlexAttention.Config)
def causal(config):
    return ScaledDotProductAttention.Config()
