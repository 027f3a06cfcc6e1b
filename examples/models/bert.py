"""A BERT: token, position and segment embeddings, LayerNorm after each half, fused attention with a padding mask.

kernelwright optimize examples/models/bert.py:build
`build_large` is BERT large, bf16, for a GPU.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Embeddings(nn.Module):
    """Sum of what the token, its position and its segment say, normalised."""

    def __init__(self, width: int, vocab: int, max_seq: int, segments: int = 2) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(vocab, width), nn.Embedding(max_seq, width)
        self.segment = nn.Embedding(segments, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return the first hidden state."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        return self.norm(self.word(input_ids) + self.position(positions) + self.segment(token_type_ids))


class SelfAttention(nn.Module):
    """Attention of every token to every token that is no padding."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)

    def _split(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        return x.view(batch, seq, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the attended values."""
        q, k, v = self._split(self.query(x)), self._split(self.key(x)), self._split(self.value(x))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.output(out.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    """One layer; each half is added to its input and then normalised."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention, self.attention_norm = SelfAttention(width, heads), nn.LayerNorm(width, eps=1e-12)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.output_norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the hidden state after this layer."""
        x = self.attention_norm(x + self.attention(x, mask))
        return self.output_norm(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """Token ids to a hidden state per token and one vector for the whole."""

    def __init__(
        self, layers: int = 4, width: int = 256, heads: int = 4, vocab: int = 2048, max_seq: int = 512
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(width, vocab, max_seq)
        self.layers = nn.ModuleList(Layer(width, heads, 4 * width) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the hidden states and the pooled first one."""
        mask = attention_mask[:, None, None, :].bool()
        x = self.embeddings(input_ids, token_type_ids)
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


def _finished(model: Bert) -> Bert:
    """Draw the norms too: ones and zeros would hide a kernel that drops them."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return model.eval()


def build(**sizes: Any) -> Bert:
    """Return a small model with random weights."""
    torch.manual_seed(0)
    return _finished(Bert(**sizes))


def build_large(device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> Bert:
    """Return BERT large, made where it will run."""
    torch.manual_seed(0)
    with torch.device(device):
        return _finished(Bert(layers=24, width=1024, heads=16, vocab=30522)).to(dtype)


def _batch(seed: int, vocab: int, batch: int, seq: int) -> dict[str, Tensor]:
    """Return texts of different lengths, padded to the longest, each of two segments."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab, (batch, seq), generator=generator)
    lengths = torch.randint(seq // 2, seq + 1, (batch, 1), generator=generator)
    places = torch.arange(seq)
    return {
        "input_ids": ids,
        "attention_mask": (places < lengths).long(),
        "token_type_ids": (places >= lengths // 2).long(),
    }


def sample_inputs(seed: int = 0) -> dict[str, Tensor]:
    """Return two texts of up to 128 tokens, as keyword arguments."""
    return _batch(seed, 2048, 2, 128)


def sample_inputs_long(seed: int = 0) -> dict[str, Tensor]:
    """Return four texts of up to 128 tokens."""
    return _batch(seed, 2048, 4, 128)


def sample_inputs_large(seed: int = 0) -> dict[str, Tensor]:
    """Return thirty-two texts of up to 512 tokens."""
    return _batch(seed, 30522, 32, 512)


def main() -> None:
    """Run the model once and print what comes out."""
    with torch.inference_mode():
        hidden, pooled = build()(**sample_inputs())
    print(f"hidden {tuple(hidden.shape)}, pooled {tuple(pooled.shape)}, mean {pooled.mean():.4f}")


if __name__ == "__main__":
    main()
