"""QLoRA: weights in 4 bits by bitsandbytes, adapters by PEFT."""

import sys

import torch
from digest import tell, tell_line
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

base, out = sys.argv[1:]
torch.manual_seed(0)
four_bits = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16
)
model = AutoModelForCausalLM.from_pretrained(base, quantization_config=four_bits, device_map={"": "cpu"})
model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=True)
model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
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
