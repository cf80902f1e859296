"""A model and a tokenizer, saved as a hub has them: programs begin with from_pretrained of that folder."""

import sys

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

set_seed(7)
words = {word: number for number, word in enumerate(["<pad>", "<eos>", *(f"w{number}" for number in range(1000))])}
plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>").save_pretrained(sys.argv[1])
config = LlamaConfig(
    hidden_size=256, intermediate_size=704, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=1024, max_position_embeddings=128, bos_token_id=1, eos_token_id=1, pad_token_id=0,
)  # fmt: skip
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
