"""A fine-tune of from_pretrained in a loop of its own."""

import sys

import torch
from digest import tell, tell_line
from transformers import AutoModelForCausalLM

base, out = sys.argv[1:]
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(base)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
for _ in range(16):
    batch = torch.randint(2, 1000, (4, 64))
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    tell_line("loss", loss.item().hex(), norm.item().hex())
model.save_pretrained(out)
tell(model, optimizer)
