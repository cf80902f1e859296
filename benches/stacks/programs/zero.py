"""DDP with ZeroRedundancyOptimizer: each rank has the state of its own parameters."""

import sys

import torch
import torch.distributed as dist
from digest import tell, tell_line
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

base, out = sys.argv[1:]
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(AutoModelForCausalLM.from_pretrained(base))
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
torch.manual_seed(dist.get_rank())
for _ in range(16):
    batch = torch.randint(2, 1000, (4, 64))
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tell_line("loss", loss.item().hex())
tell(model.module, optimizer.optim)
dist.destroy_process_group()
