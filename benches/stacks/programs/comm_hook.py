"""DDP with a communication hook: gradients compressed to fp16, or by PowerSGD."""

import sys

import torch
import torch.distributed as dist
from digest import tell, tell_line
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

base, out, kind = sys.argv[1:]
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(AutoModelForCausalLM.from_pretrained(base))
if kind == "powersgd":
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=4)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
else:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
torch.manual_seed(dist.get_rank())
for _ in range(16):
    batch = torch.randint(2, 1000, (4, 64))
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tell_line("loss", loss.item().hex())
tell(model.module, optimizer)
dist.destroy_process_group()
