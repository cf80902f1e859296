"""Diffusion models (diffusers), adapters (peft), and what has neither: recurrent networks, two optimizers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from catalog import Training, program
from catalog.images_and_sound import endless
from catalog.text import AS_T5, GROUPED, from_config, loss_of_its_own, sentences

SIDE = 16


def adapted(kind: str, settings: dict[str, Any], auto: str, **options: Any) -> Training:
    import peft

    model = peft.get_peft_model(from_config(kind, settings, auto), peft.LoraConfig(r=8, lora_alpha=16, **options))
    optimizer = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=1e-3)
    return Training(model, optimizer, sentences(), loss_of_its_own)


def noisy(random: torch.Generator) -> Any:
    image = torch.randn(4, 3, SIDE, SIDE, generator=random)
    noise = torch.randn(4, 3, SIDE, SIDE, generator=random)
    level = torch.rand(4, 1, 1, 1, generator=random)
    return {
        "sample": image * (1 - level).sqrt() + noise * level.sqrt(),
        "timestep": (level.flatten() * 999).long(),
        "noise": noise,
        "words": torch.randn(4, 8, 64, generator=random),
    }


def denoised(model: Any, batch: Any) -> Any:
    return nn.functional.mse_loss(model(batch["sample"], batch["timestep"]).sample, batch["noise"])


def denoised_by_words(model: Any, batch: Any) -> Any:
    found = model(batch["sample"], batch["timestep"], encoder_hidden_states=batch["words"]).sample
    return nn.functional.mse_loss(found, batch["noise"])


def unet() -> Training:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=SIDE,
        block_out_channels=(64, 96, 128),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    ).train()
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-4), endless(noisy), denoised)


def unet_with_words() -> Training:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=SIDE,
        in_channels=3,
        out_channels=3,
        block_out_channels=(64, 128),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=64,
        attention_head_dim=8,
    ).train()
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-4), endless(noisy), denoised_by_words)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1024, 192)
        self.lstm = nn.LSTM(192, 192, num_layers=3, batch_first=True)
        self.gru = nn.GRU(192, 192, num_layers=2, batch_first=True)
        self.head = nn.Linear(192, 1024)

    def forward(self, input_ids: Any, labels: Any) -> Any:
        x = self.gru(self.lstm(self.words(input_ids))[0])[0]
        return nn.functional.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def recurrent() -> Training:
    model = Recurrent()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Training(model, optimizer, sentences(), lambda model, batch: model(**batch))


program("UNet2DModel", "diffusion", unet)
program("UNet2DConditionModel", "diffusion", unet_with_words)
program("llama, LoRA", "LoRA", lambda: adapted("llama", GROUPED, "AutoModelForCausalLM", target_modules="all-linear"))
program(
    "llama, DoRA",
    "LoRA",
    lambda: adapted("llama", GROUPED, "AutoModelForCausalLM", target_modules=["q_proj", "v_proj"], use_dora=True),
)
program("t5, LoRA", "LoRA", lambda: adapted("t5", AS_T5, "AutoModelForSeq2SeqLM", target_modules=["q", "v"]))
program("LSTM and GRU", "recurrent", recurrent)
