"""Training steps of whole models on the meta device, for the recorder.

Needs transformers; downloads nothing.

    python -m tidelog.models gpt2-xl --gpu planner/machines/h100-nvl.json > trace.json
    python -m tidelog.models config.json --gpu ...      a transformers configuration
    python -m tidelog.models train.py:make --gpu ...    make() returns (model, inputs), inputs a
                                                        dictionary of tensors

A step: micro-batches forward and backward, gradients averaged with other GPUs, AdamW as one fused
kernel per parameter. Attention is memory-efficient attention; routing of mixtures of experts is
taken to be even. ``tidelog-plan record`` runs this module.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, get_args

import torch
from torch import Tensor, nn

from tidelog.output._figures import Precision as Precision
from tidelog.recorder import Gpu, Recorder


# Name -> the shape and type of what a model reads.
Inputs: TypeAlias = dict[str, tuple[tuple[int, ...], torch.dtype]]

#: Models by name: the transformers model type, and what differs from its default configuration.
KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2-xl": ("gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "mixtral-like": (
        "mixtral",
        {
            "hidden_size": 2048, "intermediate_size": 5632,
            "num_hidden_layers": 24, "num_attention_heads": 32,
            "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
        },
    ),
    "t5-large": (
        "t5",
        {
            "d_model": 1024, "d_ff": 4096, "d_kv": 64,
            "num_layers": 24, "num_decoder_layers": 24, "num_heads": 16,
            "decoder_start_token_id": 0,
        },
    ),
    "vit-huge": (
        "vit",
        {
            "hidden_size": 1280, "intermediate_size": 5120,
            "num_hidden_layers": 32, "num_attention_heads": 16,
            "patch_size": 14, "num_labels": 1000,
        },
    ),
    "resnet-152": ("resnet", {"depths": [3, 8, 36, 3], "num_labels": 1000}),
    "llama3-8b": (
        "llama",
        {
            "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "vocab_size": 128256,
        },
    ),
}  # fmt: skip

AVERAGED = "all_reduce"


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: object,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Memory-efficient attention, named outright: on meta tensors torch would choose the one that
    stores all scores."""
    key, value, position_bias = _spread(module, query, key, value, position_bias)
    output, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query,
        key,
        value,
        position_bias,
        query.requires_grad,
        dropout,
        getattr(module, "is_causal", True),
        scale=scaling,
    )
    return output.transpose(1, 2), None


def processor_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: object,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Computes scaled_dot_product_attention as a processor does: by flash attention, or where there is dropout the one
    that stores all scores, as it does on meta tensors.
    """
    key, value, position_bias = _spread(module, query, key, value, position_bias)
    causal = getattr(module, "is_causal", True) and position_bias is None
    if dropout:
        output = nn.functional.scaled_dot_product_attention(
            query, key, value, position_bias, dropout, causal, scale=scaling
        )
    else:
        output, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=position_bias, scale=scaling
        )
    return output.transpose(1, 2), None


def _spread(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, position_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys and values for each head, and a bias for each score."""
    groups = getattr(module, "num_key_value_groups", 1)
    if groups > 1:
        key, value = (one.repeat_interleave(groups, dim=1) for one in (key, value))
    if position_bias is not None:
        position_bias = position_bias.expand(*query.shape[:3], key.shape[2])
    return key, value, position_bias


ATTENTIONS = {"tidelog": attention, "tidelog-processor": processor_attention}


def register_attention() -> None:
    """Makes the names in `ATTENTIONS` known to transformers."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    for name, function in ATTENTIONS.items():
        ALL_ATTENTION_FUNCTIONS.register(name, function)


def even_experts(self: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """A mixture of experts in which each gets as many tokens: what the router decides cannot be
    known without data."""
    output = torch.zeros_like(hidden)
    share = chosen.numel() // self.num_experts
    order = chosen.flatten().argsort()
    weights = weights.flatten()
    both = zip(self.gate_up_proj.unbind(0), self.down_proj.unbind(0))
    for expert, (gate_up, down) in enumerate(both):
        rows = order[expert * share : (expert + 1) * share]
        tokens = rows // chosen.shape[-1]
        gate, up = nn.functional.linear(hidden[tokens], gate_up).chunk(2, dim=-1)
        part = nn.functional.linear(self.act_fn(gate) * up, down) * weights[rows, None]
        output = output.index_add(0, tokens, part)
    return output


class AdamW:
    """One fused kernel per parameter, as the engine would split a fused step under a budget."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)
        self.state = [
            (torch.zeros_like(p), torch.zeros_like(p), torch.zeros((), device="meta")) for p in self.parameters
        ]

    def step(self) -> None:
        for parameter, (first, second, count) in zip(self.parameters, self.state):
            torch._fused_adamw_(
                [parameter], [_gradient(parameter)], [first], [second], [], [count],
                lr=1e-4, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8,
                amsgrad=False, maximize=False,
            )  # fmt: skip
            parameter.grad = None


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        raise RuntimeError("a parameter got no gradient: the model does not use it")
    return parameter.grad


class MixedAdamW(AdamW):
    """Optimizer AdamW over single-precision copies of parameters that are kept in half precision."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.half = list(parameters)
        super().__init__([parameter.detach().float() for parameter in self.half])

    def step(self) -> None:
        for half, master in zip(self.half, self.parameters):
            master.grad = _gradient(half).float()
            half.grad = None
        super().step()
        with torch.no_grad():
            for half, master in zip(self.half, self.parameters):
                half.copy_(master)


def build(name: str, attention: str = "tidelog") -> tuple[Any, dict[str, Tensor] | None]:
    """A model of this name, configuration file or function, and the shapes of its inputs if a
    function said them. `attention`: one of `ATTENTIONS`, for a configuration."""
    path, _, function = name.partition(":")
    if function:
        spec = importlib.util.spec_from_file_location("recorded", path)
        if spec is None or spec.loader is None:
            raise LookupError(f"{path!r} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(pathlib.Path(path).resolve().parent))
        spec.loader.exec_module(module)
        model, inputs = getattr(module, function)()
        return model, inputs
    if name in KNOWN:
        kind, settings = KNOWN[name]
    elif name.endswith(".json"):
        settings = _configuration(name)
        kind = settings.pop("model_type")
    else:
        known = ", ".join(KNOWN)
        raise LookupError(f"{name!r} is no known model ({known}), no config.json and no FILE.py:FUNCTION")
    return from_config(kind, settings, attention), None


def _configuration(path: str) -> dict[str, Any]:
    """Returns the content of a config.json."""
    settings = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    if not isinstance(settings, dict) or not isinstance(settings.get("model_type"), str):
        raise LookupError('it is no configuration of a model: "model_type" is missing, which is "llama" for example')
    return settings


def precision_of(name: str) -> Precision:
    """Returns the precision of training by default: what its configuration names, else single precision."""
    if not name.endswith(".json"):
        return "fp32"
    settings = _configuration(name)
    named = settings.get("dtype", settings.get("torch_dtype"))
    return "bf16" if named in ("bfloat16", "float16") else "fp32"


def from_config(kind: str, settings: dict[str, Any], attention: str) -> Any:
    """The transformers model for training that belongs to a configuration."""
    import transformers

    if kind not in transformers.CONFIG_MAPPING:
        raise LookupError(f"transformers {transformers.__version__} has no models of the type {kind!r}")
    register_attention()
    config = transformers.AutoConfig.for_model(kind, **settings)
    config.use_cache = False
    config._attn_implementation = attention
    for choice in ("CausalLM", "Seq2SeqLM", "ImageClassification"):
        auto = getattr(transformers, f"AutoModelFor{choice}")
        if type(config) in auto._model_mapping:
            break
    else:
        raise LookupError(f"models of type {kind!r} neither write text nor classify images: give FILE.py:FUNCTION")
    if config.architectures is None and isinstance(several := auto._model_mapping[type(config)], tuple):
        config.architectures = [several[0].__name__]  # the usual one; transformers asks the configuration
    model = auto.from_config(config)
    model.config._attn_implementation = attention
    for module in model.modules():
        if hasattr(module, "gate_up_proj") and hasattr(module, "num_experts"):
            module.forward = even_experts.__get__(module)
    return model


def inputs_of(model: Any, micro_batch: int, sequence: int) -> Inputs:
    """Returns the inputs of a model in training: shapes and types."""
    config = model.config
    if model.main_input_name == "pixel_values":
        # Convolutions take images of any size: ImageNet's.
        side = getattr(config, "image_size", 224)
        return {
            "pixel_values": ((micro_batch, config.num_channels, side, side), torch.float32),
            "labels": ((micro_batch,), torch.int64),
        }
    tokens = ((micro_batch, sequence), torch.int64)
    return {"input_ids": tokens, "labels": tokens}


class Step:
    """One training step of a whole model."""

    def __init__(
        self, recorder: Recorder, model: Any, inputs: Inputs, micro_batches: int = 1, data_parallel: int = 1
    ) -> None:
        self.recorder, self.model, self.inputs = recorder, model, inputs
        self.micro_batches, self.data_parallel = micro_batches, data_parallel
        mixed = any(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
        self.optimizer = (MixedAdamW if mixed else AdamW)(model.parameters())

    def named(self) -> Iterator[tuple[str, str, Tensor]]:
        parameters = dict(self.model.named_parameters())
        for name, parameter in parameters.items():
            yield name, "parameter", parameter
        states = zip(parameters, self.optimizer.parameters, self.optimizer.state)
        for name, master, (first, second, count) in states:
            if master is not parameters[name]:
                yield f"{name}.master", "optimizer_state", master
            yield f"{name}.exp_avg", "optimizer_state", first
            yield f"{name}.exp_avg_sq", "optimizer_state", second
            yield f"{name}.step", "optimizer_state", count
        for name, buffer in self.model.named_buffers():
            yield name, "other", buffer

    def __call__(self) -> None:
        for _ in range(self.micro_batches):
            batch = {name: self.recorder.receive(*facts, "load") for name, facts in self.inputs.items()}
            loss = self.model(**batch)
            loss = loss if isinstance(loss, torch.Tensor) else loss.loss
            with self.recorder.makes("gradient"):
                loss.backward()
            del batch, loss
        if self.data_parallel > 1:
            # A ring sends every byte but one part in as many as there are GPUs twice.
            part = 2 * (self.data_parallel - 1) / self.data_parallel
            for parameter in self.model.parameters():
                gradient = parameter.grad
                size = round(part * gradient.numel() * gradient.itemsize)
                self.recorder.transfer([gradient], AVERAGED, size, writes=True)
        self.optimizer.step()


def record(
    name: str,
    gpu: Gpu,
    precision: Precision | None = None,
    micro_batch: int = 4,
    micro_batches: int = 1,
    sequence: int = 1024,
    checkpointing: bool = False,
    data_parallel: int = 1,
    recorder: Callable[..., Recorder] = Recorder,
) -> Recorder:
    """The recorder with the trace of one step in it. `recorder` makes it, from `gpu` and
    `precision`; None: what the model's configuration says."""
    precision = precision or precision_of(name)
    made = recorder(gpu, precision=precision)
    with torch.device("meta"), made, _without_advice():
        model, samples = build(name, made.attention)
        model.train()
        if precision == "bf16":
            model.to(torch.bfloat16)
        elif samples is None:
            model.to(torch.float32)  # its configuration may name another
        if checkpointing:
            enable = getattr(model, "activation_checkpointing_enable", None)
            enable = enable or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        if samples is None:
            inputs = inputs_of(model, micro_batch, sequence)
        else:
            inputs = {key: (tuple(value.shape), value.dtype) for key, value in samples.items()}
        step = Step(made, model, inputs, micro_batches, data_parallel)
        made.name_globals(step.named())
        title = f"{pathlib.PurePath(name).name}, {micro_batches} x {micro_batch} samples, {precision}"
        title += ", checkpointing" if checkpointing else ""
        with made.iteration(title):
            step()
    return made


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """transformers advises who trains a model: about tokens and losses, which do not matter here."""
    try:
        from transformers.utils import logging
    except ImportError:
        yield  # a model of the user's own needs none
        return
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def main() -> None:
    about, needs, *_ = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(prog="python -m tidelog.models", description=f"{about} {needs}")
    known = ", ".join(KNOWN)
    parser.add_argument("model", help=f"{known}, a config.json, FILE.py:FUNCTION, or list")
    parser.add_argument("--gpu", help="the JSON of a machine file, or its path")
    parser.add_argument("--precision", choices=get_args(Precision))
    parser.add_argument("--checkpointing", action="store_true")
    parameters = inspect.signature(record).parameters
    numbers = {name: p.default for name, p in parameters.items() if type(p.default) is int}
    for name, default in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    arguments = vars(parser.parse_args())
    name, gpu = arguments.pop("model"), arguments.pop("gpu")
    if name == "list":
        print("\n".join(KNOWN))
        return
    if gpu is None:
        parser.error("--gpu is needed: whose kernels?")
    try:
        gpu = Gpu(**json.loads(gpu)) if gpu.lstrip().startswith("{") else Gpu.load(gpu)
        text = record(name, gpu, **arguments).to_json()
    except (LookupError, OSError, ImportError, RuntimeError, NotImplementedError, ValueError) as error:
        sys.exit(f"{name}: {error}")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
