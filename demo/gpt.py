"""A byte-level GPT trained on the Python standard library's own sources: real text that every machine has."""

import pathlib
import sysconfig

import torch
from torch import nn
from torch.nn import functional

CONTEXT = 128
BATCH = 8
WIDTH = 384
HEADS = 6
LAYERS = 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention_in = nn.Linear(WIDTH, 3 * WIDTH)
        self.attention_out = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp_in = nn.Linear(WIDTH, 4 * WIDTH)
        self.mlp_out = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, time, _ = x.shape
        q, k, v = (
            part.view(batch, time, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.attention_in(self.attention_norm(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, time, WIDTH))
        return x + self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(x))))


class GPT(nn.Module):
    """10.8 million parameters."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)

    def forward(self, x):
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def corpus(bytes_max=4 << 20):
    """The standard library's top-level modules, in alphabetical order."""
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return torch.frombuffer(bytearray(text[:bytes_max]), dtype=torch.uint8).clone()


def batches(text, count, seed):
    """`count` batches of inputs and targets, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
        rows = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()]).long()
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def train_step(model, optimizer, inputs, targets):
    """The loop body that every PyTorch user has written. Returns the loss, detached."""
    loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.detach()
