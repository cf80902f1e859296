"""Supervised fine-tuning by TRL."""

import sys

from datasets import Dataset
from digest import tell, tell_line
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

base, out = sys.argv[1:]


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        tell_line(*(f"{name} {float(logs[name]).hex()}" for name in ("loss", "grad_norm") if name in logs))


rows = [" ".join(f"w{(row * 7 + place * 3) % 1000}" for place in range(64)) for row in range(64)]
arguments = SFTConfig(
    output_dir=out, use_cpu=True, bf16=False, max_steps=16, per_device_train_batch_size=4, max_length=64,
    gradient_checkpointing=True, logging_steps=1, report_to=[], disable_tqdm=True, save_strategy="no",
)  # fmt: skip
trainer = SFTTrainer(
    AutoModelForCausalLM.from_pretrained(base),
    args=arguments,
    train_dataset=Dataset.from_dict({"text": rows}),
    processing_class=AutoTokenizer.from_pretrained(base),
    callbacks=[Losses],
)
trainer.train()
tell(trainer.model, trainer.optimizer)
