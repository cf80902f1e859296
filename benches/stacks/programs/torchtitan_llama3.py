"""torchtitan's own training, as `python -m torchtitan.train` does it: Llama 3 by its recipe, two ranks.

The recipe's tokenizer and text are where it looks for them, below the folder that it runs in.
"""

import json
import os
import random
import shutil
import sys
from pathlib import Path

base, out, *words = sys.argv[1:]
folder = Path(out) / os.environ["RANK"]
os.environ["HF_HOME"] = str(folder / "cache")

import host_accelerator  # noqa: E402
from digest import tell, tell_line  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.train import main  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

assets = folder / "tests" / "assets"
(assets / "tokenizer").mkdir(parents=True)
(assets / "c4_test").mkdir()
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(Path(base) / name, assets / "tokenizer" / name)
drawn = random.Random(5)
with open(assets / "c4_test" / "data.json", "w", encoding="utf-8") as text:
    for _ in range(400):
        said = " ".join(f"w{drawn.randrange(1000)}" for _ in range(drawn.randrange(20, 200)))
        text.write(json.dumps({"text": said}) + "\n")
os.chdir(folder)

log, close = MetricsProcessor.log, Trainer.close


def log_and_tell(processor, step, loss, greatest, norm, **rest):
    tell_line(step, loss.hex(), greatest.hex(), norm.hex())
    log(processor, step, loss, greatest, norm, **rest)


def tell_and_close(trainer):
    tell(*trainer.model_parts, *trainer.optimizers)
    close(trainer)


MetricsProcessor.log, Trainer.close = log_and_tell, tell_and_close
sys.argv[1:] = [
    *("--module", "llama3", "--config", "llama3_debugmodel"),
    *("--training.disable_cuda_graphs", "--training.steps", "16", "--debug.seed", "7"),
    *("--training.local_batch_size", "2", "--training.seq_len", "128"),
    *("--override.imports", f"{host_accelerator.__name__}.causal", *words),
]
main()
