"""LoRA of PEFT, or DoRA where the third argument says so."""

import sys

import torch
from digest import tell, tell_line
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

base, out, kind = sys.argv[1:]
torch.manual_seed(0)
config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", use_dora=kind == "dora", task_type="CAUSAL_LM")
model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
for _ in range(16):
    batch = torch.randint(2, 1000, (4, 64))
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tell_line("loss", loss.item().hex())
model.save_pretrained(out)
tell(model, optimizer)
