"""Compares a step's time with what `tidelog fit` expects: five small models on this machine's processor.

    python benches/fit.py [--fraction 0.4] [--steps 10] [--pool DIR] [--output json]

Each model is first looked at, then trained in a block of `fraction` of what it needs, with fused
AdamW; the ratio is the median of the planned steps to the expected step. Ends with 1 where one is
further off than LIMIT.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "torch-bridge" / "python"
sys.path.insert(0, str(PACKAGES))

FIGURES = ROOT / "target" / "fit.json"  # for `make figures`
LIMIT = 0.20
MIB = 1 << 20
SEQUENCE, MICRO_BATCH = 256, 4
# No dropout: transformers has it on by default for GPT-2 and T5 only.
MODELS = {
    "gpt2": {
        "model_type": "gpt2", "n_embd": 512, "n_layer": 8, "n_head": 8, "vocab_size": 8000,
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
    },
    "llama": {
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8000,
    },
    "qwen3": {
        "model_type": "qwen3", "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 10,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 8000,
    },
    "opt": {
        "model_type": "opt", "hidden_size": 512, "ffn_dim": 2048, "num_hidden_layers": 6,
        "num_attention_heads": 8, "vocab_size": 8000, "dropout": 0.0, "word_embed_proj_dim": 512,
    },
    "vit": {
        "model_type": "vit", "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8,
        "num_attention_heads": 6, "num_labels": 100,
    },
}  # fmt: skip


def main():
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="tidelog-fit-bench-") as folder:
        pool = arguments.pool or folder
        rows = [row(name, arguments, pathlib.Path(folder), pool) for name in arguments.models]
    FIGURES.write_text(json.dumps(rows, indent=2) + "\n")
    if arguments.output == "json":
        json.dump(rows, sys.stdout, indent=2)
    worst = max(abs(each["ratio"] - 1) for each in rows)
    print(f"the furthest is {worst:.0%} off (limit {LIMIT:.0%})", file=sys.stderr)
    return 0 if worst <= LIMIT else 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--fraction", type=float, default=0.4, help="budget as a part of what is needed (default 0.4)")
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed (default 10)")
    parser.add_argument("--pool", help="folder of the pool (default: a temporary one)")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser.parse_args()


def row(name, arguments, folder, pool):
    config = folder / f"{name}.json"
    config.write_text(json.dumps(MODELS[name]))
    needed = fit(config, "--read", "1e12", "--write", "1e12")["memory_without_tidelog"]
    memory = int(needed * arguments.fraction)
    expected = fit(config, "--memory", str(memory), "--pool", pool)
    seconds = trained(config, memory, pool, arguments.steps)
    ratio = seconds / expected["step_seconds"]
    print(
        f"{name:8} {memory / MIB:7.1f} MiB of {needed / MIB:7.1f} MiB: expected {expected['step_seconds']:.3f} s "
        f"({expected['waiting_seconds']:.3f} s waiting), measured {seconds:.3f} s, ratio {ratio:.2f}",
        file=sys.stderr,
    )
    return {"model": name, "expected": expected, "measured_seconds": seconds, "ratio": ratio}


def fit(config, *words):
    sizes = ["--sequence", str(SEQUENCE), "--micro-batch", str(MICRO_BATCH), "--output", "json"]
    command = [sys.executable, "-m", "tidelog", "fit", str(config), *sizes, *words]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(PACKAGES)})
    if done.returncode not in (0, 2):
        sys.exit(f"tidelog fit {config}: {done.stderr}")
    return json.loads(done.stdout)


def trained(config, memory, pool, steps):
    """The median of planned steps of a real training."""
    code = f"import sys; sys.path[:0] = {[str(pathlib.Path(__file__).parent)]}; import fit; fit.train({str(config)!r}, {memory}, {pool!r}, {steps})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"training {config}: {done.stderr}")
    return float(done.stdout.split()[-1])


def train(config, memory, pool, steps):
    import torch
    import transformers

    import tidelog
    from tidelog.models import inputs_of

    torch.manual_seed(0)
    settings = json.loads(pathlib.Path(config).read_text())
    chosen = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    chosen.use_cache = False
    vision = hasattr(chosen, "image_size")
    auto = transformers.AutoModelForImageClassification if vision else transformers.AutoModelForCausalLM
    model = auto.from_config(chosen).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    seconds = []
    with tidelog.offload(model, optimizer, pool=pool, memory=memory) as tide:
        while len(seconds) < steps:
            batch = {
                name: torch.randn(shape) if dtype.is_floating_point else torch.randint(0, 100, shape)
                for name, (shape, dtype) in inputs_of(model, MICRO_BATCH, SEQUENCE).items()
            }
            began = time.perf_counter()
            with tide.step():
                loss = model(**batch).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                del loss
            if tide.phase == "planned":
                seconds.append(time.perf_counter() - began)
            else:
                tide.await_plan()
    print(statistics.median(seconds[2:]))


if __name__ == "__main__":
    sys.exit(main())
