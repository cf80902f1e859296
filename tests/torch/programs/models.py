"""Models of the transformers package, built from small configurations: nothing is downloaded."""

import importlib.util

import torch

from programs import collect, program, train

if importlib.util.find_spec("transformers") is not None:
    import transformers

    transformers.logging.set_verbosity_error()

    def trained(block, model, loss_of, steps=4, **options):
        model.train()
        return train(block, model, torch.optim.AdamW(model.parameters(), lr=1e-3, **options), loss_of, steps)

    def causal(block, model, vocabulary=160, steps=4, **options):
        tokens = torch.randint(0, vocabulary, (2, 16))
        return trained(block, model, lambda _: model(input_ids=tokens, labels=tokens).loss, steps, **options)

    @program
    def gpt2(block):
        config = transformers.GPT2Config(vocab_size=160, n_positions=32, n_embd=48, n_layer=3, n_head=4)
        return causal(block, transformers.GPT2LMHeadModel(config))

    @program
    def gpt2_with_gradient_checkpointing(block):
        config = transformers.GPT2Config(
            vocab_size=160, n_positions=32, n_embd=48, n_layer=3, n_head=4, use_cache=False
        )
        model = transformers.GPT2LMHeadModel(config)
        model.gradient_checkpointing_enable()
        return causal(block, model, foreach=True)

    def llama_config(**options):
        return transformers.LlamaConfig(
            vocab_size=160, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, **options,
        )  # fmt: skip

    @program
    def llama(block):
        return causal(block, transformers.LlamaForCausalLM(llama_config()))

    @program
    def llama_eager_attention_tied(block):
        return causal(
            block, transformers.LlamaForCausalLM(llama_config(tie_word_embeddings=True, attn_implementation="eager"))
        )

    @program
    def llama_generates(block):
        model = transformers.LlamaForCausalLM(llama_config()).eval()
        tokens = torch.randint(0, 160, (2, 8))
        with torch.no_grad(), block(model, None) as step:
            with step():
                greedy = model.generate(tokens, max_new_tokens=6, do_sample=False, pad_token_id=0)
            with step():
                sampled = model.generate(tokens, max_new_tokens=6, do_sample=True, pad_token_id=0)
            return collect(model, None, [greedy, sampled])

    @program
    def mixtral(block):
        config = transformers.MixtralConfig(
            vocab_size=160, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, num_local_experts=4, max_position_embeddings=64,
        )  # fmt: skip
        return causal(block, transformers.MixtralForCausalLM(config), steps=3)

    @program
    def bert_masked(block):
        config = transformers.BertConfig(
            vocab_size=160,
            hidden_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=96,
            max_position_embeddings=32,
        )
        model = transformers.BertForMaskedLM(config)
        tokens, mask = torch.randint(0, 160, (2, 16)), torch.ones(2, 16, dtype=torch.long)
        mask[1, 12:] = 0
        return trained(block, model, lambda _: model(input_ids=tokens, attention_mask=mask, labels=tokens).loss)

    @program
    def t5(block):
        config = transformers.T5Config(
            vocab_size=160,
            d_model=48,
            d_kv=12,
            d_ff=96,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
            pad_token_id=0,
        )
        model = transformers.T5ForConditionalGeneration(config)
        tokens = torch.randint(1, 160, (2, 10))
        return trained(block, model, lambda _: model(input_ids=tokens, labels=tokens.flip(1)).loss, steps=3)

    @program
    def vision_transformer(block):
        config = transformers.ViTConfig(
            hidden_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=96,
            image_size=16,
            patch_size=4,
            num_labels=10,
        )
        model = transformers.ViTForImageClassification(config)
        x, target = torch.randn(3, 3, 16, 16), torch.randint(0, 10, (3,))
        return trained(block, model, lambda _: torch.nn.functional.cross_entropy(model(pixel_values=x).logits, target))
