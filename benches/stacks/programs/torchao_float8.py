"""Linear layers that multiply in float8, by torchao."""

import sys

import torch
from digest import tell, tell_line
from torchao.float8 import convert_to_float8_training
from transformers import AutoModelForCausalLM

base, out = sys.argv[1:]
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
convert_to_float8_training(model.model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(16):
    batch = torch.randint(2, 1000, (4, 64))
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tell_line("loss", loss.item().hex())
tell(model, optimizer)
