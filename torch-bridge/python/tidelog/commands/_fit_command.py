"""The command `tidelog fit`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields
from typing import get_args

from tidelog._options import size
from tidelog.commands._commands import OUTPUT, USAGE, Commands, add_output, failure, reader, tell
from tidelog.output._figures import Precision

DESCRIPTION = """\
Says before any training what a training step of a model would need and take: the least memory, the
step's time and tokens per second, what would move, how long the drives would last, and what other
hardware would bring. The model is made without its weights. Each different op of a step is measured
on this machine, by itself (or computed for the GPU that --gpu describes), and the step is planned
for --memory and the pool.
"""

EPILOG = f"""\
MODEL is the name of a model (gpt2-xl, llama3-8b, ...: `python -m tidelog.models list`), the
config.json of a transformers model, or FILE.py:FUNCTION, which returns (model, inputs), inputs a
dictionary of tensors. The optimizer is AdamW with fused=True.

Exit codes:
  0   it fits
  1   there is no such model, or it cannot be recorded
  2   --memory is too small for it; what would do is said
  3   the pool could not be measured
  4   tidelog-plan is not installed beside this command, or failed
  {USAGE}  the command line makes no sense
  {OUTPUT}  the output could not be written

Examples:
  tidelog fit gpt2-xl --memory 24GiB --pool /mnt/nvme0/tide --output json | jq .step_seconds
  tidelog fit config.json --memory 8GiB --pool /mnt/nvme0/tide
  tidelog fit llama3-8b --memory 80GiB --gpu h100-nvl --read 24e9 --write 20e9 \\
      --drive "990 PRO 2TB" --drives 4 --micro-batch 1 --checkpointing
"""


def add_command(commands: Commands) -> None:
    """Adds `fit` to the commands of `tidelog`."""
    parser = commands.add_parser(
        "fit",
        help="what a model would need here, and how fast it would train",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a name, a config.json, or FILE.py:FUNCTION")
    parser.add_argument(
        "--memory", type=reader(size, "--memory"), help='the budget, such as "20GiB"; default: all that the model needs'
    )
    parser.add_argument(
        "--host-memory",
        type=reader(size, "--host-memory"),
        help="with --gpu: page-locked host memory that takes tensors, too, as offload's host_memory=; default none",
    )
    parser.add_argument("--pool", help="devices as for `tidelog run`: their rates are measured")
    parser.add_argument("--read", type=float, help="bytes per second that the pool reads, instead of --pool")
    parser.add_argument("--write", type=float, help="bytes per second that it writes")
    parser.add_argument("--drive", metavar="MODEL", help="the drives' model, for how long they last")
    parser.add_argument("--drives", type=int, default=1, metavar="COUNT", help="how many there are (default 1)")
    parser.add_argument(
        "--gpu",
        help="compute ops for this GPU instead of measuring them here: a100, h100-nvl, h200, rtx-4090, or a file",
    )
    parser.add_argument(
        "--precision",
        choices=get_args(Precision),
        help="by default what the configuration names as dtype, else fp32; half precision is bf16 with masters in fp32",
    )
    parser.add_argument("--micro-batch", type=int, default=4, help="samples at once (default 4)")
    parser.add_argument("--micro-batches", type=int, default=1, help="of these in a step (default 1)")
    parser.add_argument("--sequence", type=int, default=1024, help="tokens in a sample (default 1024)")
    parser.add_argument("--checkpointing", action="store_true", help="save only the inputs of each layer")
    parser.add_argument("--report", metavar="FILE", help="write the picture of the step there, an HTML page")
    parser.add_argument("--trace", metavar="FILE", help="write the trace there, for tidelog-plan")
    add_output(parser, "figures are written, and errors with --output json")
    parser.set_defaults(command=fit, name="fit")


def fit(said: argparse.Namespace) -> int:
    """Does what the command line says; returns the exit code."""
    from tidelog.commands._fit import Exit, Failure, Question, answer  # with torch, which no help needs

    question = Question(**{each.name: getattr(said, each.name) for each in fields(Question)})
    try:
        found = answer(question)
    except Failure as error:
        # Errors are a document of their own where figures are one.
        tell(failure(said, error.code, error), sys.stdout if said.output == "json" else sys.stderr)
        return error.code
    tell(json.dumps(found.figures, indent=2) if said.output == "json" else found, sys.stdout)
    return Exit.FITS if found.fits else Exit.DOES_NOT_FIT
