"""A LLaMA: RMSNorm, rotary attention with grouped key/value heads, SwiGLU, and a key/value cache for decoding.

kernelwright optimize examples/models/llama.py:build          a small one, one prompt
kernelwright optimize examples/models/llama.py:build_decode   a small one with a cache: a prompt, then token by token
kernelwright optimize examples/models/llama.py:build_loss     one that keeps a GPU busy, bf16: the loss of a text
`build_large` and `build_large_decode` are of the 8B class, bf16, for a GPU.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Cache(nn.Module):
    """Keys and values of one layer for every position so far; its size is fixed, so that shapes never change."""

    def __init__(self, batch: int, kv_heads: int, max_seq: int, head_dim: int) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(batch, kv_heads, max_seq, head_dim), persistent=False)
        self.register_buffer("v", torch.zeros(batch, kv_heads, max_seq, head_dim), persistent=False)

    def update(self, positions: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write new positions in place and return the whole cache."""
        self.k.index_copy_(2, positions, k)
        self.v.index_copy_(2, positions, v)
        return self.k, self.v


class Attention(nn.Module):
    """Causal attention with rotary positions and grouped key/value heads."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, cached: tuple[Cache, Tensor, Tensor] | None = None
    ) -> Tensor:
        """Return the attended values; `cached` is the layer's cache, the positions of x, and what they may see."""
        batch, seq, width = x.shape
        q = self.q_proj(x).view(batch, seq, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, seq, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, seq, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        is_grouped = self.heads != self.kv_heads
        if cached is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=is_grouped)
        else:
            cache, positions, mask = cached
            k, v = cache.update(positions, k, v)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=is_grouped)
        return self.o_proj(out.transpose(1, 2).reshape(batch, seq, width))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x with its halves rotated by the position's angles."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the gated projection."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.attention, self.mlp = Attention(width, heads, kv_heads), FeedForward(width, hidden)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, cached: tuple[Cache, Tensor, Tensor] | None = None
    ) -> Tensor:
        """Return the residual stream after this layer."""
        x = x + self.attention(self.attention_norm(x), cos, sin, cached)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    """Token ids to logits."""

    def __init__(
        self,
        layers: int = 4,
        width: int = 256,
        heads: int = 4,
        kv_heads: int = 2,
        vocab: int = 2048,
        hidden: int | None = None,
        theta: float = 10000.0,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        hidden = hidden or (8 * width // 3 + 15) // 16 * 16
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocab, bias=False)
        half = width // heads // 2
        angles = torch.outer(torch.arange(4096.0), theta ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every position."""
        seq = tokens.shape[1]
        x, cos, sin = self.embed(tokens), self.cos[:seq], self.sin[:seq]
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


class ScoredLlama(Llama):
    """Token ids and what should follow each to the mean loss: the forward pass of training and of perplexity."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of the targets."""
        return F.cross_entropy(super().forward(tokens).flatten(0, 1), targets.flatten())


class CachedLlama(Llama):
    """Token ids and the position of the first one to the logits of the last: a prompt, then token by token."""

    def __init__(self, batch: int = 1, max_seq: int = 256, **sizes: Any) -> None:
        super().__init__(**sizes)
        first = self.blocks[0].attention
        self.max_seq = max_seq
        self.caches = nn.ModuleList(
            Cache(batch, first.kv_heads, max_seq, first.head_dim) for _ in self.blocks
        )

    def forward(self, tokens: Tensor, start: Tensor) -> Tensor:
        """Return the logits of the last position; `start` is a scalar, so that one graph serves every position."""
        positions = start + torch.arange(tokens.shape[1], device=tokens.device)
        mask = torch.arange(self.max_seq, device=tokens.device) <= positions[:, None]
        x, cos, sin = self.embed(tokens), self.cos[positions], self.sin[positions]
        for block, cache in zip(self.blocks, self.caches, strict=True):
            x = block(x, cos, sin, (cache, positions, mask))
        return self.head(self.norm(x[:, -1:]))


BUSY = {"layers": 4, "width": 1024, "heads": 16, "kv_heads": 8, "vocab": 32000}
LARGE = {
    "layers": 32,
    "width": 4096,
    "heads": 32,
    "kv_heads": 8,
    "vocab": 128256,
    "hidden": 14336,
    "theta": 500000.0,
}


def _finished(model: Llama) -> Llama:
    """Draw the norms too: a weight of ones would hide a kernel that drops it."""
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return model.eval()


def build(**sizes: Any) -> Llama:
    """Return the model with random weights."""
    torch.manual_seed(0)
    return _finished(Llama(**sizes))


def build_decode(**sizes: Any) -> Llama:
    """Return the model with a cache."""
    torch.manual_seed(0)
    return _finished(CachedLlama(**sizes))


def build_loss(device: str = "cpu", dtype: torch.dtype = torch.bfloat16, **sizes: Any) -> Llama:
    """Return the model with its loss, large enough that a GPU does not wait for launches most of the time."""
    torch.manual_seed(0)
    with torch.device(device):
        return _finished(ScoredLlama(**{**BUSY, **sizes})).to(dtype)


def build_large(device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> Llama:
    """Return the 8B class, made where it will run."""
    torch.manual_seed(0)
    with torch.device(device):
        return _finished(Llama(**LARGE)).to(dtype)


def build_large_decode(device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> Llama:
    """Return the 8B class with a cache of 4096 positions."""
    torch.manual_seed(0)
    with torch.device(device):
        return _finished(CachedLlama(max_seq=4096, **LARGE)).to(dtype)


def _tokens(seed: int, vocab: int, *shape: int) -> Tensor:
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


def sample_inputs(seed: int = 0) -> tuple[Tensor, ...]:
    """Return one prompt of 512 tokens."""
    return (_tokens(seed, 2048, 1, 512),)


def sample_inputs_decode(seed: int = 0) -> list[dict[str, Any]]:
    """Return a prompt of 128 tokens, and one token at a position behind it, which is called 32 times as often."""
    prefill = (_tokens(seed, 2048, 1, 128), torch.tensor(0))
    decode = (_tokens(seed, 2048, 1, 1), torch.tensor(128 + seed % 128))
    return [
        {"name": "prefill", "weight": 1, "args": prefill, "dynamic": {"tokens": (None, "seq")}},
        {"name": "decode", "weight": 32, "args": decode},
    ]


def sample_inputs_loss(seed: int = 0) -> tuple[Tensor, ...]:
    """Return four texts of 512 tokens and the same texts from their second token on."""
    text = _tokens(seed, BUSY["vocab"], 4, 513)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def sample_inputs_large(seed: int = 0) -> tuple[Tensor, ...]:
    """Return one prompt of 2048 tokens."""
    return (_tokens(seed, LARGE["vocab"], 1, 2048),)


def sample_inputs_large_decode(seed: int = 0) -> list[dict[str, Any]]:
    """Return a prompt of 2048 tokens, and one token behind it, which is called 256 times as often."""
    prefill = (_tokens(seed, LARGE["vocab"], 1, 2048), torch.tensor(0))
    decode = (_tokens(seed, LARGE["vocab"], 1, 1), torch.tensor(2048 + seed % 2048))
    return [
        {"name": "prefill", "weight": 1, "args": prefill, "dynamic": {"tokens": (None, "seq")}},
        {"name": "decode", "weight": 256, "args": decode},
    ]


def main() -> None:
    """Run the model once, and once token by token, and print what comes out."""
    with torch.inference_mode():
        logits = build()(*sample_inputs())
        cached = build_decode()
        rows = {item["name"]: tuple(cached(*item["args"]).shape) for item in sample_inputs_decode()}
    print(f"logits {tuple(logits.shape)}, mean {logits.mean():.4f}")
    print(f"with a cache: {rows}")


if __name__ == "__main__":
    main()
