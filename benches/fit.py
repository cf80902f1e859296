"""Compares a step's time with what `tidelog fit` expects: ten small models on this machine's processor.

    python benches/fit.py [--fraction 0.4] [--steps 10] [--pool DIR] [--output json]

Each model is first looked at, then trained in a block of `fraction` of what it needs, with fused
AdamW; the ratio is the median of the planned steps to the expected step. Plain steps run before the
block and after it: `relative` is the same ratio with both steps measured in plain ones, which other
programs on the machine disturb less. Ends with 1 where one is further off than LIMIT.
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
PLAIN_STEPS = 4  # before the block, and after it
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
    "mistral": {
        "model_type": "mistral", "hidden_size": 448, "intermediate_size": 1536, "num_hidden_layers": 8,
        "num_attention_heads": 7, "num_key_value_heads": 7, "vocab_size": 8000, "sliding_window": None,
    },
    "gpt_neox": {
        "model_type": "gpt_neox", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 7,
        "num_attention_heads": 8, "vocab_size": 8000,
    },
    "phi": {
        "model_type": "phi", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 7,
        "num_attention_heads": 8, "vocab_size": 8000,
    },
    "bloom": {
        "model_type": "bloom", "hidden_size": 512, "n_layer": 7, "n_head": 8, "vocab_size": 8000,
        "hidden_dropout": 0.0, "attention_dropout": 0.0,
    },
    "deit": {
        "model_type": "deit", "hidden_size": 448, "intermediate_size": 1792, "num_hidden_layers": 7,
        "num_attention_heads": 7, "num_labels": 100, "architectures": ["DeiTForImageClassification"],
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
        rows = []
        for name in arguments.models:
            rows.append(row(name, arguments, pathlib.Path(folder), pool))
            FIGURES.write_text(json.dumps(rows, indent=2) + "\n")  # the run may be cut off
    if arguments.output == "json":
        json.dump(rows, sys.stdout, indent=2)
    worst, relative = (max(abs(each[key] - 1) for each in rows) for key in ("ratio", "relative"))
    print(
        f"the furthest is {worst:.0%} off, in plain steps {relative:.0%} (limit {LIMIT:.0%}); load "
        f"{os.getloadavg()[1]:.1f} on {os.cpu_count()} cores",
        file=sys.stderr,
    )
    return 0 if worst <= LIMIT else 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--fraction", type=float, default=0.4, help="budget as a part of what is needed (default 0.4)")
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed (default 10)")
    parser.add_argument("--sequence", type=int, default=256, help="tokens in a sample (default 256)")
    parser.add_argument("--micro-batch", type=int, default=4, help="samples in a step (default 4)")
    parser.add_argument("--pool", help="folder of the pool (default: a temporary one)")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser.parse_args()


def row(name, arguments, folder, pool):
    config = folder / f"{name}.json"
    config.write_text(json.dumps(MODELS[name]))
    sizes = arguments.micro_batch, arguments.sequence
    needed = fit(config, sizes, "--read", "1e12", "--write", "1e12")["memory_without_tidelog"]
    memory = int(needed * arguments.fraction)
    expected = fit(config, sizes, "--memory", str(memory), "--pool", pool)
    seconds, plain = trained(config, memory, pool, arguments.steps, *sizes)
    ratio = seconds / expected["step_seconds"]
    relative = (seconds / plain) / (expected["step_seconds"] / expected["compute_seconds"])
    print(
        f"{name:8} {memory / MIB:7.1f} MiB of {needed / MIB:7.1f} MiB: expected {expected['step_seconds']:.3f} s "
        f"({expected['waiting_seconds']:.3f} s waiting; plain {expected['compute_seconds']:.3f} s), measured "
        f"{seconds:.3f} s (plain {plain:.3f} s), ratio {ratio:.2f}, in plain steps {relative:.2f}",
        file=sys.stderr,
    )
    found = {"measured_seconds": seconds, "plain_seconds": plain, "ratio": ratio, "relative": relative}
    return {"model": name, "expected": expected, **found, "load": os.getloadavg()[1]}


def fit(config, sizes, *words):
    micro_batch, sequence = map(str, sizes)
    sizes = ["--sequence", sequence, "--micro-batch", micro_batch, "--output", "json"]
    command = [sys.executable, "-m", "tidelog", "fit", str(config), *sizes, *words]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(PACKAGES)})
    if done.returncode not in (0, 2):
        sys.exit(f"tidelog fit {config}: {done.stderr}")
    return json.loads(done.stdout)


def trained(config, memory, pool, *sizes):
    """Medians of planned steps of a real training, and of plain ones around it."""
    call = f"fit.train{(str(config), memory, pool, *sizes)!r}"
    code = f"import sys; sys.path[:0] = {[str(pathlib.Path(__file__).parent)]}; import fit; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"training {config}: {done.stderr}")
    return map(float, done.stdout.split()[-2:])


def train(config, memory, pool, steps, micro_batch, sequence):
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
    seconds, plain = [], []

    def step():
        batch = {
            name: torch.randn(shape) if dtype.is_floating_point else torch.randint(0, 100, shape)
            for name, (shape, dtype) in inputs_of(model, micro_batch, sequence).items()
        }
        began = time.perf_counter()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss
        return time.perf_counter() - began

    step()  # makes the optimizer's state
    plain += [step() for _ in range(PLAIN_STEPS)]
    with tidelog.offload(model, optimizer, pool=pool, memory=memory) as tide:
        while len(seconds) < steps:
            began = time.perf_counter()
            with tide.step():
                step()
            if tide.phase == "planned":
                seconds.append(time.perf_counter() - began)
            else:
                tide.await_plan()
        tide.restore()
    plain += [step() for _ in range(PLAIN_STEPS)]
    print(statistics.median(seconds[2:]), statistics.median(plain))


if __name__ == "__main__":
    sys.exit(main())
