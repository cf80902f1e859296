"""AdamW of torchao, with states of 8 bits."""

import sys

import torch
from digest import tell, tell_line
from torchao.optim import AdamW8bit
from transformers import AutoModelForCausalLM

base, out = sys.argv[1:]
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(base)
optimizer = AdamW8bit(model.parameters(), lr=1e-4)
for _ in range(16):
    batch = torch.randint(2, 1000, (4, 64))
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tell_line("loss", loss.item().hex())
tell(model, optimizer)
