"""The Trainer with accumulation, bf16, checkpointing, evaluation, and the best model at the end."""

import sys

import torch
from digest import tell, tell_line
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

base, out = sys.argv[1:]
set_seed(3)
model = AutoModelForCausalLM.from_pretrained(base)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(2, 1000, (72, 64))]


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        tell_line(*(f"{name} {float(logs[name]).hex()}" for name in ("loss", "grad_norm", "eval_loss") if name in logs))


arguments = TrainingArguments(
    output_dir=out, use_cpu=True, bf16=True, max_steps=16, per_device_train_batch_size=2,
    gradient_accumulation_steps=2, gradient_checkpointing=True, learning_rate=1e-3, logging_steps=1,
    eval_strategy="steps", eval_steps=6, save_steps=6, load_best_model_at_end=True, report_to=[], disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(model, arguments, train_dataset=rows[8:], eval_dataset=rows[:8], callbacks=[Losses])
trainer.train()
tell_line("best", trainer.state.best_global_step, trainer.state.best_metric.hex())
trainer.save_model(out)
tell(trainer.model)
