"""Schedule-free AdamW, whose weights are others while it evaluates."""

import sys

import schedulefree
import torch
from digest import tell, tell_line
from transformers import AutoModelForCausalLM

base, out = sys.argv[1:]
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(base)
optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=1e-3, warmup_steps=4)
optimizer.train()
for _ in range(16):
    batch = torch.randint(2, 1000, (4, 64))
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tell_line("loss", loss.item().hex())
model.eval()
optimizer.eval()
with torch.no_grad():
    batch = torch.randint(2, 1000, (4, 64))
    tell_line("evaluated", model(input_ids=batch, labels=batch).loss.item().hex())
model.save_pretrained(out)
tell(model, optimizer)
