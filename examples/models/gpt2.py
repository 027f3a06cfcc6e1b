"""A GPT-2: learned positions, LayerNorm before each half, attention written out by hand, head tied to the embedding.

kernelwright optimize examples/models/gpt2.py:build
`build_large` is GPT-2 XL, bf16, for a GPU.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int, max_seq: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        visible = torch.ones(max_seq, max_seq, dtype=torch.bool).tril()
        self.register_buffer("visible", visible[None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended values."""
        batch, seq, width = x.shape
        q, k, v = (
            part.view(batch, seq, self.heads, width // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(~self.visible[:, :, :seq, :seq], float("-inf"))
        out = F.softmax(scores, dim=-1) @ v
        return self.c_proj(out.transpose(1, 2).contiguous().view(batch, seq, width))


class Mlp(nn.Module):
    """Two projections around a GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the projection back to the model's width."""
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """One layer."""

    def __init__(self, width: int, heads: int, max_seq: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width, heads, max_seq), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after this layer."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    """Token ids to logits."""

    def __init__(
        self, layers: int = 4, width: int = 256, heads: int = 4, vocab: int = 2048, max_seq: int = 512
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(max_seq, width)
        self.blocks = nn.ModuleList(Block(width, heads, max_seq) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every position."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def _finished(model: Gpt2) -> Gpt2:
    """Draw weights as GPT-2 does, and the norms too: ones and zeros would hide a kernel that drops them."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return model.eval()


def build(**sizes: Any) -> Gpt2:
    """Return a small model with random weights."""
    torch.manual_seed(0)
    return _finished(Gpt2(**sizes))


def build_large(device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> Gpt2:
    """Return GPT-2 XL, made where it will run."""
    torch.manual_seed(0)
    with torch.device(device):
        return _finished(Gpt2(layers=48, width=1600, heads=25, vocab=50257, max_seq=1024)).to(dtype)


def _sets(seed: int, vocab: int, seq: int, batches: dict[int, float]) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "name": f"batch{batch}",
            "weight": weight,
            "args": (torch.randint(0, vocab, (batch, seq), generator=generator),),
            "dynamic": {"tokens": ("batch", "seq")},
        }
        for batch, weight in batches.items()
    ]


def sample_inputs(seed: int = 0) -> list[dict[str, Any]]:
    """Return prompts of 128 tokens, alone in three calls of four and four at a time in the rest."""
    return _sets(seed, 2048, 128, {1: 3, 4: 1})


def sample_inputs_long(seed: int = 0) -> list[dict[str, Any]]:
    """Return one prompt of 512 tokens."""
    return _sets(seed, 2048, 512, {1: 1})


def sample_inputs_large(seed: int = 0) -> list[dict[str, Any]]:
    """Return prompts of 1024 tokens, alone and eight at a time."""
    return _sets(seed, 50257, 1024, {1: 3, 8: 1})


def main() -> None:
    """Run the model on every set of inputs and print what comes out."""
    model = build()
    with torch.inference_mode():
        for item in sample_inputs():
            logits = model(*item["args"])
            print(f"{item['name']}: logits {tuple(logits.shape)}, mean {logits.mean():.4f}")


if __name__ == "__main__":
    main()
