"""Models of the transformers package that read and write text, from small configurations."""

from __future__ import annotations

from typing import Any

import torch

from catalog import Training, program

ROWS, LENGTH, WORDS = 4, 64, 1024
WIDTH, LAYERS, HEADS = 192, 4, 6

# What most configurations call these, and what others call them.
USUAL = {
    "vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": 4 * WIDTH, "max_position_embeddings": 2 * LENGTH,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**USUAL, "num_key_value_heads": 2, "head_dim": WIDTH // HEADS, "intermediate_size": 3 * WIDTH}
AS_GPT = {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 2 * LENGTH}
AS_GPT |= {"bos_token_id": 1, "eos_token_id": 2}
AS_BART = {
    "vocab_size": WORDS, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 4 * WIDTH, "decoder_ffn_dim": 4 * WIDTH, "max_position_embeddings": 2 * LENGTH,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
AS_T5 = {
    "vocab_size": WORDS, "d_model": WIDTH, "d_kv": 32, "d_ff": 3 * WIDTH, "num_layers": 2, "num_heads": HEADS,
    "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0,
}  # fmt: skip
EXPERTS = {**GROUPED, "intermediate_size": WIDTH, "moe_intermediate_size": WIDTH, "num_hidden_layers": 3}

DECODERS = {
    "gpt2": AS_GPT,
    "gpt_neox": USUAL,
    "opt": {**USUAL, "ffn_dim": 4 * WIDTH, "word_embed_proj_dim": WIDTH},
    "bloom": {"vocab_size": WORDS, "hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "pad_token_id": 0},
    "falcon": {**USUAL, "alibi": False, "new_decoder_architecture": False},
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 32},
    "qwen3": GROUPED,
    "gemma2": {**GROUPED, "sliding_window": 32, "query_pre_attn_scalar": 32},
    "phi3": GROUPED,
    "olmo2": GROUPED,
    "starcoder2": GROUPED,
}  # fmt: skip

MIXTURES = {
    "mixtral": {**EXPERTS, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {**EXPERTS, "num_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {**EXPERTS, "num_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {**EXPERTS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32},
    "deepseek_v3": {
        **EXPERTS, "num_key_value_heads": HEADS, "head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": 48,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
    },
}  # fmt: skip

STATE_SPACES = {
    "mamba": {"vocab_size": WORDS, "hidden_size": 192, "num_hidden_layers": 3, "state_size": 8},
    "mamba2": {
        "vocab_size": WORDS, "hidden_size": 128, "num_hidden_layers": 4, "state_size": 16, "num_heads": 8,
        "head_dim": 32, "n_groups": 1, "chunk_size": 32,
    },
    "rwkv": {
        "vocab_size": WORDS, "hidden_size": 192, "attention_hidden_size": 192, "num_hidden_layers": 3,
        "context_length": LENGTH,
    },
    "recurrent_gemma": {
        **GROUPED, "num_hidden_layers": 3, "lru_width": WIDTH, "attention_window_size": 32, "num_key_value_heads": 1,
    },
    "jamba": {
        **EXPERTS, "num_experts": 2, "num_experts_per_tok": 1, "attn_layer_period": 2, "attn_layer_offset": 1,
        "use_mamba_kernels": False, "mamba_d_state": 8,
    },
    "lfm2": {**GROUPED, "block_multiple_of": 32},
}  # fmt: skip

ENCODERS = {
    "bert": USUAL,
    "albert": {**USUAL, "embedding_size": WIDTH, "num_hidden_groups": LAYERS},
    "distilbert": {"vocab_size": WORDS, "dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 4 * WIDTH},
    "deberta-v2": {**USUAL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 32},
    "modernbert": {**USUAL, "local_attention": 32, "cls_token_id": 1, "sep_token_id": 2},
    "fnet": USUAL,
}  # fmt: skip

TRANSLATORS = {
    "t5": AS_T5,
    "switch_transformers": {**AS_T5, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    "bart": AS_BART,
    "pegasus": AS_BART,
    "m2m_100": AS_BART,
}


def add(kinds: dict[str, dict[str, Any]], auto: str, words: str, length: int = LENGTH) -> None:
    for kind, settings in kinds.items():
        program(kind, words, lambda kind=kind, settings=settings: trained(kind, settings, auto, length))


def from_config(kind: str, settings: dict[str, Any], auto: str) -> Any:
    """A model for training, with random weights."""
    import transformers

    config = transformers.AutoConfig.for_model(kind, **settings)
    config.use_cache = False
    return getattr(transformers, auto).from_config(config).train()


def trained(kind: str, settings: dict[str, Any], auto: str, length: int) -> Training:
    model = from_config(kind, settings, auto)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Training(model, optimizer, sentences(length), loss_of_its_own)


def sentences(length: int = LENGTH) -> Any:
    """Batches of tokens, each to be written as it was read."""
    random = torch.Generator().manual_seed(7)
    while True:
        tokens = torch.randint(3, WORDS, (ROWS * LENGTH // length, length), generator=random)
        yield {"input_ids": tokens, "labels": tokens.clone()}


def loss_of_its_own(model: Any, batch: Any) -> Any:
    """The loss that models of transformers compute."""
    return model(**batch).loss


add(DECODERS, "AutoModelForCausalLM", "decoder")
add(MIXTURES, "AutoModelForCausalLM", "mixture of experts")
# These go through a sequence step by step: compiled, each step has kernels of its own.
add(STATE_SPACES, "AutoModelForCausalLM", "state space, recurrent", length=16)
add(ENCODERS, "AutoModelForMaskedLM", "encoder")
add(TRANSLATORS, "AutoModelForSeq2SeqLM", "encoder-decoder")
