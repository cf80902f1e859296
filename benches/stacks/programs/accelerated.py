"""A loop of accelerate, for any number of processes."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from digest import tell, tell_line
from transformers import AutoModelForCausalLM

base, out = sys.argv[1:]
set_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2)
model = AutoModelForCausalLM.from_pretrained(base)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = torch.utils.data.DataLoader(torch.randint(2, 1000, (128, 64)), batch_size=2, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    tell_line("loss", loss.item().hex())
accelerator.save_state(out)
tell(accelerator.unwrap_model(model), optimizer)
accelerator.end_training()
