"""The programs that benches/overhead.py times: small transformers made from their configs, in eager mode. And one that
computes little for what its layers save."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

VOCABULARY = 4000

# model type -> its config, the batch and the sequence. Few large ops first, many small ones last.
MODELS: dict[str, tuple[dict[str, Any], int, int]] = {
    "gpt2": ({"n_embd": 384, "n_layer": 6, "n_head": 6}, 4, 128),
    "gpt2-124m": ({"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12}, 2, 256),
    "qwen3": (
        {
            "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64,
        },
        2, 128,
    ),
    # Little to compute for each parameter: optimizer state is most of what there is.
    "wide": ({"n_embd": 768, "n_layer": 4, "n_head": 12}, 2, 64),
    # Less still: for disks that are slow, and for ranks.
    "short": ({"n_embd": 384, "n_layer": 8, "n_head": 6}, 1, 32),
    "mamba": ({"hidden_size": 64, "num_hidden_layers": 4, "state_size": 16}, 2, 192),
    "rwkv": ({"hidden_size": 256, "attention_hidden_size": 256, "num_hidden_layers": 4, "context_length": 128}, 4, 128),
}  # fmt: skip


class Gates(nn.Module):
    """A layer that scales and clips each feature, many times: all that it makes is saved, and quickly made."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.scales = nn.Parameter(1 + 0.01 * torch.randn(count, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for scale in self.scales:
            y = torch.relu(y * scale)
        return x + y


class GatesModel(nn.Module):
    """Model of layers with gates behind a projection."""

    def __init__(self, inputs: int = 64, width: int = 512, layers: int = 6) -> None:
        super().__init__()
        self.project = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(Gates(width, 6) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.project(x)
        for layer in self.layers:
            x = layer(x)
        return x


def make(
    name: str, rank: int = 0, wrap: Callable[[nn.Module], nn.Module] = lambda model: model
) -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]:
    """A model, its optimizer, and a step, which returns the loss. The same for every caller, but that each rank has a
    batch of its own. With "+checkpointing" behind its name a model computes its layers again in the backward pass.
    `wrap`: makes it that of a rank."""
    if name == "gates":
        return make_gates()
    name, _, checkpointing = name.partition("+")
    config, batch, sequence = MODELS[name]
    torch.manual_seed(0)
    kind = "gpt2" if name in ("wide", "short", "gpt2-124m") else name
    chosen = transformers.AutoConfig.for_model(kind, **{"vocab_size": VOCABULARY, **config})
    chosen.use_cache = False
    model = transformers.AutoModelForCausalLM.from_config(chosen).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model = wrap(model)
    if rank:
        torch.manual_seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    inputs = torch.randint(0, VOCABULARY, (batch, sequence))

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = model(input_ids=inputs, labels=inputs).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, optimizer, step


def make_gates() -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]:
    """Makes the model that is no transformer."""
    torch.manual_seed(0)
    model = GatesModel().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    inputs = torch.randn(4096, 64)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, optimizer, step
