"""Training loops of libraries that not every run of the tests has: Lightning, TRL, torchtitan.

`make test-integrations` installs them and runs this file; a library that is missing is a failure there,
and skipped elsewhere.
"""

import csv
import importlib.util
import os
import re
import shlex
from pathlib import Path

import pytest
import torch

import tidelog

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
WITHIN = dict(staging="256KiB", pool_size="256MiB")


def needs(name):
    if "TIDELOG_INTEGRATIONS" in os.environ:
        return importlib.import_module(name)
    return pytest.importorskip(name)


def bits(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


# -- Lightning ------------------------------------------------------------------------------------


def lightning_module(lightning):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(12)])

        def training_step(self, batch, _number):
            return self.layers(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    torch.manual_seed(5)
    return Module(), torch.utils.data.DataLoader(torch.randn(64, 128), batch_size=4)


def lightning_trainer(lightning, folder, **more):
    return lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, default_root_dir=folder, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=2, log_every_n_steps=1, **more,
    )  # fmt: skip


def test_lightning_gives_the_same_bits_and_logs_figures(pool, tmp_path):
    lightning = needs("lightning.pytorch")
    from lightning.pytorch.loggers import CSVLogger

    from tidelog.integrations.lightning import OffloadCallback

    module, loader = lightning_module(lightning)
    lightning_trainer(lightning, tmp_path, logger=False, enable_checkpointing=False).fit(module, loader)
    plain = bits(module)
    del module, loader

    module, loader = lightning_module(lightning)
    logger = CSVLogger(tmp_path / "logs")
    with tidelog.offload(module, pool=pool, memory="2000KiB", **WITHIN) as tide:
        trainer = lightning_trainer(lightning, tmp_path, logger=logger, callbacks=[OffloadCallback(tide)])
        trainer.fit(module, loader)
        assert tide.stats()["totals"]["bytes_read"] > 0 and tide.peak_bytes <= 2000 << 10
        assert len(tide.loop.seconds) == trainer.global_step == 8  # of two batches each
        assert tide.ledger.record_of(module.layers[3].weight.untyped_storage()).name == "layers.3.weight"
        tide.restore()
    assert same(bits(module), plain)
    logged = list(csv.DictReader(open(f"{logger.log_dir}/metrics.csv")))
    assert len(logged) == 8 and all(0 < float(entry["tidelog/peak_bytes"]) <= 2000 << 10 for entry in logged)
    (checkpoint,) = tmp_path.glob("**/*.ckpt")
    assert same([*torch.load(checkpoint)["state_dict"].values()], plain)


# -- TRL ------------------------------------------------------------------------------------------


@pytest.fixture
def tokenizer():
    """Made here: nothing is downloaded."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["<pad>", "<eos>", *(f"w{number}" for number in range(200))])}
    plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>")


def words(rows, salt):
    return [" ".join(f"w{(row * 7 + place * 3 + salt) % 200}" for place in range(16)) for row in range(rows)]


def language_model():
    from transformers import GPT2Config, GPT2LMHeadModel, set_seed

    set_seed(7)
    sizes = dict(n_embd=256, n_layer=4, n_head=2, vocab_size=202, n_positions=64)
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=1))


def trl_trainer(kind, tokenizer, folder, callbacks):
    trl = needs("trl")
    from datasets import Dataset

    common = dict(
        output_dir=str(folder), max_steps=5, per_device_train_batch_size=2, logging_steps=1, report_to=[],
        use_cpu=True, bf16=False, disable_tqdm=True, save_strategy="no", gradient_checkpointing=False,
    )  # fmt: skip
    if kind == "sft":
        rows = Dataset.from_dict({"text": words(16, 0)})
        trainer, arguments = trl.SFTTrainer, trl.SFTConfig(max_length=32, **common)
    else:
        rows = Dataset.from_dict({"prompt": words(16, 0), "chosen": words(16, 1), "rejected": words(16, 2)})
        trainer, arguments = trl.DPOTrainer, trl.DPOConfig(max_length=48, **common)
    # A reference model that is not given would be looked for on the hub.
    more = {} if kind == "sft" else {"ref_model": language_model()}
    return trainer(
        language_model(), args=arguments, train_dataset=rows, processing_class=tokenizer, callbacks=callbacks, **more
    )


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_trl_gives_the_same_bits(kind, tokenizer, pool, tmp_path):
    needs("trl")
    from tidelog.integrations.transformers import OffloadCallback

    trainer = trl_trainer(kind, tokenizer, tmp_path, [])
    trainer.train()
    plain = bits(trainer.model)
    del trainer

    with tidelog.offload(pool=pool, memory="32MiB", **WITHIN) as tide:
        trainer = trl_trainer(kind, tokenizer, tmp_path, [OffloadCallback(tide)])
        trainer.train()
        assert tide.stats()["totals"]["bytes_read"] > 0 and tide.peak_bytes <= 32 << 20
        tide.restore()
    assert same(bits(trainer.model), plain)
    assert sum("tidelog/stall_seconds" in entry for entry in trainer.state.log_history) >= 5


# -- torchtitan -----------------------------------------------------------------------------------

EXAMPLE = Path(__file__).resolve().parents[2] / "torch-bridge" / "examples" / "torchtitan.sh"


def test_torchtitan_takes_the_words_of_the_example():
    """Reads the example's options by torchtitan. Its training is one of benches/stacks."""
    needs("torchtitan")
    from torchtitan.config import ConfigManager

    words = shlex.split(re.search(r"^torchtitan=\((.*)\)$", EXAMPLE.read_text(), re.MULTILINE)[1])
    config = ConfigManager().parse_args(words)
    assert config.training.disable_cuda_graphs and config.training.steps == 20
    assert importlib.util.find_spec("torchtitan.train") is not None
