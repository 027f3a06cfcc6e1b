"""A small LLaMA: RMSNorm, rotary attention, SwiGLU. `build` makes the model, `sample_inputs` its inputs.

kernelwright optimize examples/models/llama.py:build
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal attention with rotary positions and grouped key/value heads."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the attended values."""
        batch, seq, width = x.shape
        q = self.q_proj(x).view(batch, seq, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, seq, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, seq, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
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

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the residual stream after this layer."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    """Token ids to logits."""

    def __init__(
        self, layers: int = 4, width: int = 256, heads: int = 4, kv_heads: int = 2, vocab: int = 2048
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        hidden = (8 * width // 3 + 15) // 16 * 16
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocab, bias=False)
        half = width // heads // 2
        angles = torch.outer(torch.arange(4096.0), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every position."""
        seq = tokens.shape[1]
        x, cos, sin = self.embed(tokens), self.cos[:seq], self.sin[:seq]
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def build() -> Llama:
    """Return the model with random weights, norms included: a weight of ones would hide a kernel that drops it."""
    torch.manual_seed(0)
    model = Llama().eval()
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return model


def sample_inputs(seed: int = 0) -> tuple[Tensor, ...]:
    """Return one prompt of 512 tokens."""
    return (torch.randint(0, 2048, (1, 512), generator=torch.Generator().manual_seed(seed)),)


def main() -> None:
    """Run the model once and print what comes out."""
    with torch.inference_mode():
        logits = build()(*sample_inputs())
    print(f"logits {tuple(logits.shape)}, mean {logits.mean():.4f}")


if __name__ == "__main__":
    main()
