"""The Trainer, in two calls of the program: the second resumes from the checkpoint of the first."""

import sys

import torch
from digest import tell, tell_line
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

base, out, steps = sys.argv[1:]
set_seed(3)
model = AutoModelForCausalLM.from_pretrained(base)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(2, 1000, (64, 64))]


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        tell_line(*(f"{name} {float(logs[name]).hex()}" for name in ("loss", "grad_norm") if name in logs))


arguments = TrainingArguments(
    output_dir=out, use_cpu=True, max_steps=int(steps), per_device_train_batch_size=2, logging_steps=1,
    lr_scheduler_type="constant", save_steps=4, save_total_limit=1, report_to=[], disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[Losses])
trainer.train(resume_from_checkpoint=steps != "4")
tell(trainer.model, trainer.optimizer)
