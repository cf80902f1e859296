"""Direct preference optimization by TRL, with a reference model."""

import sys

from datasets import Dataset
from digest import tell, tell_line
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer

base, out = sys.argv[1:]


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        tell_line(*(f"{name} {float(logs[name]).hex()}" for name in ("loss", "grad_norm") if name in logs))


def words(salt):
    return [" ".join(f"w{(row * 7 + place * 3 + salt) % 1000}" for place in range(24)) for row in range(40)]


arguments = DPOConfig(
    output_dir=out, use_cpu=True, bf16=False, max_steps=16, per_device_train_batch_size=2, max_length=48,
    gradient_checkpointing=False, logging_steps=1, report_to=[], disable_tqdm=True, save_strategy="no",
)  # fmt: skip
trainer = DPOTrainer(
    AutoModelForCausalLM.from_pretrained(base),
    ref_model=AutoModelForCausalLM.from_pretrained(base),
    args=arguments,
    train_dataset=Dataset.from_dict({"prompt": words(0), "chosen": words(1), "rejected": words(2)}),
    processing_class=AutoTokenizer.from_pretrained(base),
    callbacks=[Losses],
)
trainer.train()
tell(trainer.model, trainer.optimizer)
