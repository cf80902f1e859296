"""Models of the transformers package for images, sound, and both with text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from catalog import Training, program
from catalog.text import WORDS, from_config, loss_of_its_own

SIDE, CLASSES = 64, 10
VIT = {
    "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 768,
    "image_size": SIDE, "patch_size": 8, "num_labels": CLASSES,
}  # fmt: skip
SWIN = {"image_size": SIDE, "patch_size": 4, "embed_dim": 48, "depths": [2, 2, 2], "num_heads": [3, 6, 12],
        "window_size": 4, "num_labels": CLASSES}  # fmt: skip
CONVOLUTIONS = {"hidden_sizes": [48, 96, 192, 384], "depths": [2, 2, 2, 2], "num_labels": CLASSES}

IMAGES = {
    "vit": VIT,
    "beit": VIT,
    "dinov2": VIT,
    "swin": SWIN,
    "convnextv2": CONVOLUTIONS,
    "resnet": {**CONVOLUTIONS, "embedding_size": 48, "layer_type": "basic"},
    "mobilevit": {"image_size": SIDE, "hidden_sizes": [48, 72, 96], "neck_hidden_sizes": [16, 24, 32, 48, 64, 80, 160],
                  "num_labels": CLASSES},
    "segformer": {"hidden_sizes": [32, 64, 96, 128], "num_labels": CLASSES},
}  # fmt: skip

SPEECH = {
    "vocab_size": 64, "hidden_size": 144, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 576,
    "conv_dim": [64] * 4, "conv_stride": [5, 4, 4, 2], "conv_kernel": [10, 8, 8, 4], "num_feat_extract_layers": 4,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 8, "apply_spec_augment": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WHISPER = {
    "vocab_size": WORDS, "d_model": 192, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6,
    "decoder_attention_heads": 6, "encoder_ffn_dim": 768, "decoder_ffn_dim": 768, "num_mel_bins": 40,
    "max_source_positions": 64, "max_target_positions": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
SPECTROGRAMS = {
    "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 768,
    "max_length": 128, "num_mel_bins": 64, "num_labels": CLASSES,
}  # fmt: skip
_TOWER = {"hidden_size": 144, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 576}
TEXT_AND_IMAGES = {
    "text_config": {**_TOWER, "vocab_size": WORDS, "max_position_embeddings": 32, "eos_token_id": 2},
    "vision_config": {**_TOWER, "image_size": SIDE, "patch_size": 8},
}  # fmt: skip


def endless(make: Callable[[torch.Generator], Any]) -> Any:
    random = torch.Generator().manual_seed(7)
    while True:
        yield make(random)


def trained(kind: str, settings: dict[str, Any], auto: str, make: Callable[[torch.Generator], Any]) -> Training:
    model = from_config(kind, settings, auto)
    optimizer = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=1e-3)
    return Training(model, optimizer, endless(make), loss_of_its_own)


def labelled_images(random: torch.Generator) -> Any:
    return {
        "pixel_values": torch.randn(4, 3, SIDE, SIDE, generator=random),
        "labels": torch.randint(CLASSES, (4,), generator=random),
    }


def images_alone(random: torch.Generator) -> Any:
    """Trains on images; the program draws the mask of a masked autoencoder, as it draws its noise."""
    return {"pixel_values": torch.randn(4, 3, SIDE, SIDE, generator=random)}


def spoken(random: torch.Generator) -> Any:
    return {
        "input_values": torch.randn(2, 16000, generator=random),
        "labels": torch.randint(3, 64, (2, 12), generator=random),
    }


def transcribed(random: torch.Generator) -> Any:
    return {
        "input_features": torch.randn(4, 40, 128, generator=random),
        "labels": torch.randint(3, WORDS, (4, 32), generator=random),
    }


def spectrograms(random: torch.Generator) -> Any:
    return {
        "input_values": torch.randn(4, 128, 64, generator=random),
        "labels": torch.randint(CLASSES, (4,), generator=random),
    }


def captioned(random: torch.Generator) -> Any:
    tokens = torch.randint(3, WORDS, (8, 32), generator=random)
    tokens[:, -1] = 2
    return {
        "pixel_values": torch.randn(8, 3, SIDE, SIDE, generator=random),
        "input_ids": tokens,
        "return_loss": True,
    }


for kind, settings in IMAGES.items():
    program(
        kind,
        "vision",
        lambda kind=kind, settings=settings: trained(
            kind, settings, "AutoModelForImageClassification", labelled_images
        ),
    )
AUTOENCODER = {**VIT, "decoder_hidden_size": 96, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 6}
AUTOENCODER |= {"decoder_intermediate_size": 384}
program("vit_mae", "vision", lambda: trained("vit_mae", AUTOENCODER, "AutoModelForPreTraining", images_alone))
for kind in ("wav2vec2", "hubert"):
    program(kind, "audio", lambda kind=kind: trained(kind, SPEECH, "AutoModelForCTC", spoken))
program("whisper", "audio", lambda: trained("whisper", WHISPER, "AutoModelForSpeechSeq2Seq", transcribed))
program(
    "audio_spectrogram_transformer",
    "audio",
    lambda: trained("audio-spectrogram-transformer", SPECTROGRAMS, "AutoModelForAudioClassification", spectrograms),
)
for kind in ("clip", "siglip"):
    program(kind, "text and images", lambda kind=kind: trained(kind, TEXT_AND_IMAGES, "AutoModel", captioned))
