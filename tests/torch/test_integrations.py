"""Training loops of other libraries, as they are: the same bits under `tidelog run`, and their own
callbacks."""

import json

import pytest
import torch

import tidelog
from test_run import assert_planned_by, program, run, run_plain, tidelog_command, tidelog_run

pytest.importorskip("accelerate")
from tidelog.integrations import step_figures  # noqa: E402

TRAINER = """
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

set_seed(3)
config = GPT2Config(n_embd=64, n_layer=4, n_head=2, vocab_size=300, n_positions=32, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 300, (48, 32))]
arguments = TrainingArguments(
    output_dir=sys.argv[1], per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=9,
    logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
)

class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print("loss", float(logs["loss"]).hex(), float(logs["grad_norm"]).hex(), flush=True)

trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[Losses])
trainer.train()
trainer.save_model(sys.argv[1])
print(sum(parameter.double().sum().item() for parameter in model.parameters()).hex())
"""

__all__ = ["program", "tidelog_run"]
IMPORTS = ["transformers.trainer", "transformers.models.gpt2.modeling_gpt2"]


def test_an_unedited_trainer_gives_the_same_bits(program, tidelog_run, tmp_path):
    path, stats = program(TRAINER), tmp_path / "stats.json"
    code, plain, err = run_plain(path, tmp_path / "plain", imports=IMPORTS)
    assert code == 0, err
    words = [*tidelog_run[2:], "--memory", "3MiB", "--stats", stats]
    code, out, err = tidelog_command(*words, path, tmp_path / "offloaded", imports=IMPORTS)
    assert code == 0, err
    assert lines(out) == lines(plain) and len(lines(out)) == 10
    figures = json.loads(stats.read_text())
    assert figures["steps"] == 9 and figures["totals"]["bytes_read"] > 0
    saved = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "offloaded")]
    assert saved[0] == saved[1]


def test_an_unedited_trainer_is_planned_by_its_eighth_step(program, tidelog_run, tmp_path):
    """Checks a trainer that fetches batches ahead and lets go of them late, so that some live in three steps."""
    stats = tmp_path / "stats.json"
    words = [*tidelog_run[2:], "--memory", "3MiB", "--stats", stats, program(TRAINER), tmp_path / "out"]
    code, _, err = tidelog_command(*words, imports=IMPORTS, AWAIT_PLANS="1")
    assert code == 0, err
    assert_planned_by(8, json.loads(stats.read_text()))


def lines(out):
    return [line for line in out.splitlines() if line.startswith(("loss ", "0x", "-0x"))]


RESUMED = (
    TRAINER.replace("import sys\n", "import os\nimport signal\nimport sys\n")
    .replace('save_strategy="no"', 'save_strategy="steps", save_steps=4')
    .replace("trainer.train()", "trainer.train(resume_from_checkpoint=sys.argv[2] == 'resume')")
    .replace(
        "flush=True)\n",
        "flush=True)\n            if sys.argv[2] == 'kill' and state.global_step == 6:\n"
        "                os.kill(os.getpid(), signal.SIGKILL)\n",
        1,
    )
)


@pytest.mark.slow
def test_a_killed_trainer_resumes_by_itself_with_the_same_bits(program, tidelog_run, tmp_path):
    path = program(RESUMED)
    code, plain, err = run(path, tmp_path / "plain", "plain")
    assert code == 0, err
    words = [*tidelog_run, "--memory", "3MiB", path, tmp_path / "offloaded"]
    _, killed, _ = run(*words, "kill")
    assert lines(killed) == lines(plain)[:6]
    code, resumed, err = run(*words, "resume")
    assert code == 0, err
    assert lines(resumed) == lines(plain)[4:]


def test_the_callback_marks_steps_and_logs_figures(pool, tmp_path):
    from transformers import Trainer, TrainingArguments

    from tidelog.integrations.transformers import OffloadCallback

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(12)])

        def forward(self, x):
            return {"loss": self.layers(x).square().mean()}

    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=5, logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="no",
    )  # fmt: skip
    rows = [{"x": row} for row in torch.randn(64, 128)]
    model = Model()
    with tidelog.offload(model, pool=pool, memory="2000KiB", staging="256KiB", pool_size="64MiB") as tide:
        trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[OffloadCallback(tide)])
        trainer.train()
        assert tide.stats()["totals"]["bytes_read"] > 0
        tide.restore()
    logged = [entry for entry in trainer.state.log_history if "tidelog/stall_seconds" in entry]
    assert len(logged) >= 5
    assert all(0 < entry["tidelog/peak_bytes"] <= 2000 << 10 for entry in logged[:5])


def loop(accelerator, tide=None):
    """A training loop of accelerate with gradients of two batches in each step; the parameters it ends with."""
    torch.manual_seed(4)
    model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(12)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(torch.randn(48, 128), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for number, batch in enumerate(loader):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        if tide is not None and accelerator.sync_gradients:
            accelerator.log(step_figures(tide), step=number // 2)
    if tide is not None:
        tide.restore()
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_accelerate_gives_the_same_bits_and_its_trackers_get_figures(pool, tmp_path):
    pytest.importorskip("tensorboard")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    plain = loop(Accelerator(cpu=True, gradient_accumulation_steps=2))
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with="tensorboard", project_dir=tmp_path)
    accelerator.init_trackers("runs")
    with tidelog.offload(pool=pool, memory="2000KiB", staging="256KiB", pool_size="64MiB") as tide:
        trained = loop(accelerator, tide)
        assert tide.stats()["totals"]["bytes_read"] > 0 and len(tide.loop.seconds) == 6
    accelerator.end_training()
    assert all(map(torch.equal, plain, trained))
    assert {len(values) for values in scalars(tmp_path).values()} == {6}
    AcceleratorState._reset_state(reset_partial_state=True)


def test_tensorboard_gets_each_step(pool, tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    from tidelog.integrations.tensorboard import write_step

    layers = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(12)])
    optimizer = torch.optim.AdamW(layers.parameters())
    with SummaryWriter(tmp_path) as writer:
        with tidelog.offload(layers, pool=pool, memory="2000KiB", staging="256KiB", pool_size="64MiB") as tide:
            for number in range(3):
                with tide.step():
                    layers(torch.ones(16, 128)).sum().backward()
                    optimizer.step()
                write_step(writer, tide, number)
            last, names = tide.last_step(), {*step_figures(tide), "tidelog/memory_bytes"}
            tide.restore()
    written = scalars(tmp_path)
    assert set(written) == names
    assert written["tidelog/bytes_read"][-1] == pytest.approx(last["bytes_read"]) and last["bytes_read"] > 0
    assert all(0 < size <= 2000 << 10 for size in written["tidelog/memory_bytes"])


def scalars(folder):
    """Name -> values, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found = {}
    for path in folder.glob("**/events.*"):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(value.tensor.float_val[0])
    return found
