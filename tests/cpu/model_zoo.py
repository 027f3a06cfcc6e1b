"""Tiny random models of transformers, built from configs alone, and how each is called."""

import os
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers as hf

SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = {"num_key_value_heads": 2, "max_position_embeddings": 64, "use_cache": False}
Built = tuple[torch.nn.Module, dict[str, Any]]


def tokens(seq: int = 24) -> torch.Tensor:
    return torch.randint(0, 128, (2, seq), generator=torch.Generator().manual_seed(0))


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def llama() -> Built:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, **GROUPED)), {"input_ids": tokens()}


def qwen2() -> Built:
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(**SMALL, **GROUPED)), {"input_ids": tokens()}


def mixtral() -> Built:
    config = hf.MixtralConfig(**SMALL, **GROUPED, num_local_experts=4, num_experts_per_tok=2)
    return hf.MixtralForCausalLM(config), {"input_ids": tokens()}


def phi3() -> Built:
    """Gate and up in one weight, queries, keys and values in another."""
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return hf.Phi3ForCausalLM(hf.Phi3Config(**SMALL, **GROUPED, **marks)), {"input_ids": tokens()}


def gptj() -> Built:
    """Interleaved rotary positions, attention written out."""
    sizes = {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 16}
    marks = {"bos_token_id": 1, "eos_token_id": 2}
    return hf.GPTJForCausalLM(hf.GPTJConfig(**sizes, **marks, use_cache=False)), {"input_ids": tokens()}


def gpt2() -> Built:
    sizes = {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    marks = {"bos_token_id": 0, "eos_token_id": 0}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **marks, use_cache=False)), {"input_ids": tokens()}


def bert() -> Built:
    return hf.BertModel(hf.BertConfig(**SMALL, max_position_embeddings=64)), {"input_ids": tokens()}


def vit() -> Built:
    sizes = {key: value for key, value in SMALL.items() if key != "vocab_size"}
    model = hf.ViTModel(hf.ViTConfig(**sizes, image_size=32, patch_size=8))
    return model, {"pixel_values": floats(2, 3, 32, 32)}


def t5() -> Built:
    config = hf.T5Config(
        vocab_size=128, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, use_cache=False
    )
    model = hf.T5ForConditionalGeneration(config)
    return model, {"input_ids": tokens(), "decoder_input_ids": tokens(8)}


def whisper_encoder() -> Built:
    config = hf.WhisperConfig(
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=96,
        num_mel_bins=16,
        max_source_positions=24,
    )
    encoder = hf.models.whisper.modeling_whisper.WhisperEncoder(config)
    return encoder, {"input_features": floats(2, 16, 48)}


def built(make: Callable[[], Built], *, train: bool = False) -> Built:
    """Return a model with random weights, norms and biases too: ones and zeros would hide what is dropped."""
    torch.manual_seed(0)
    model, inputs = make()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
    return model.train(train), inputs


def first(answer: Any) -> torch.Tensor:
    return answer if isinstance(answer, torch.Tensor) else answer[0]
