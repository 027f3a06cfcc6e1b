"""A recommender: how likely is it that this user clicks on this item?

Raw ids are hashed into tables, the user's history arrives as one long list with offsets and is cut to its newest
entries, the candidate attends to that history, and a factorisation machine lets all features meet in pairs.

kernelwright optimize examples/models/recommender.py:build
`build_large` has tables of a million rows and batches of 2048, for a GPU.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MASK = (1 << 31) - 1


class HashedEmbedding(nn.Module):
    """A table for ids of any size: each is hashed to a row, and to a sign, so that two on one row still differ."""

    def __init__(self, buckets: int, width: int, salt: int) -> None:
        super().__init__()
        self.buckets, self.salt = buckets, salt
        self.table = nn.Embedding(buckets, width)

    def forward(self, ids: Tensor) -> Tensor:
        """Return one vector per id."""
        mixed = (((ids ^ (ids >> 31)) & MASK) * 0x9E3779B1 + self.salt) & MASK
        mixed = ((mixed ^ (mixed >> 15)) * 0x85EBCA6B) & MASK
        mixed = mixed ^ (mixed >> 13)
        sign = 1 - 2 * ((mixed >> 20) & 1)
        return self.table(mixed % self.buckets) * sign.unsqueeze(-1).to(self.table.weight.dtype)


def newest(values: Tensor, offsets: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the last `length` entries of every user's list as rows x length, and which of them exist.

    User i owns values[offsets[i]:offsets[i + 1]], oldest first.
    """
    places = offsets[1:, None] - length + torch.arange(length, device=values.device)
    exists = places >= offsets[:-1, None]
    return values[places.clamp(0, values.shape[0] - 1)], exists


class RmsNorm(nn.Module):
    """Root-mean-square normalisation as many models write it themselves: in fp32, then back."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised rows."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class TargetAttention(nn.Module):
    """Weighs the history by how much each entry has to do with the candidate."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4 * width, hidden), nn.Linear(hidden, 1)

    def forward(self, history: Tensor, exists: Tensor, target: Tensor) -> Tensor:
        """Return one vector per user: the history as the candidate sees it."""
        target = target.unsqueeze(1).expand_as(history)
        pairs = torch.cat((history, target, history - target, history * target), dim=-1)
        scores = self.down(F.silu(self.up(pairs))).squeeze(-1)
        # A user without history has no score at all; a large negative number instead of -inf keeps softmax defined.
        weights = F.softmax(scores.masked_fill(~exists, -1e4), dim=-1) * exists
        return (weights.unsqueeze(1) @ history).squeeze(1)


def pairwise(features: Tensor) -> Tensor:
    """Return the sum over all pairs of features of their products: what a factorisation machine adds."""
    total = features.sum(dim=1)
    return 0.5 * (total.square() - features.square().sum(dim=1))


class Recommender(nn.Module):
    """User, item, history and context to the probability of a click."""

    def __init__(
        self,
        buckets: int = 4096,
        fields: int = 6,
        dense: int = 8,
        width: int = 64,
        hidden: int = 256,
        length: int = 32,
    ) -> None:
        super().__init__()
        self.length = length
        self.items = HashedEmbedding(buckets, width, salt=1)
        self.fields = nn.ModuleList(HashedEmbedding(buckets, width, salt=2 + n) for n in range(fields))
        self.dense = nn.Linear(dense, width)
        self.history_norm, self.attention = RmsNorm(width), TargetAttention(width, hidden)
        count = fields + 3
        self.norm = nn.LayerNorm(count * width + width)
        self.mlp = nn.Sequential(
            nn.Linear(count * width + width, hidden), nn.ReLU(), nn.Linear(hidden, hidden // 2), nn.ReLU()
        )
        self.out = nn.Linear(hidden // 2, 1)

    def forward(
        self, dense: Tensor, field_ids: Tensor, history: Tensor, offsets: Tensor, candidate: Tensor
    ) -> Tensor:
        """Return one probability per user."""
        target = self.items(candidate)
        recent, exists = newest(history, offsets, self.length)
        interest = self.attention(self.history_norm(self.items(recent)), exists, target)
        embedded = [table(field_ids[:, place]) for place, table in enumerate(self.fields)]
        features = torch.stack((*embedded, self.dense(dense), target, interest), dim=1)
        together = torch.cat((features.flatten(1), pairwise(features)), dim=1)
        return torch.sigmoid(self.out(self.mlp(self.norm(together)))).squeeze(-1)


def _finished(model: Recommender) -> Recommender:
    """Draw the norms too: ones would hide a kernel that drops them."""
    for module in model.modules():
        if isinstance(module, RmsNorm | nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return model.eval()


def build(**sizes: Any) -> Recommender:
    """Return a small model with random weights."""
    torch.manual_seed(0)
    return _finished(Recommender(**sizes))


def build_large(device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> Recommender:
    """Return one of a size that fills a GPU, made where it will run."""
    torch.manual_seed(0)
    with torch.device(device):
        sizes = {"buckets": 1 << 20, "fields": 26, "dense": 13, "width": 128, "hidden": 1024, "length": 256}
        return _finished(Recommender(**sizes)).to(dtype)


def _users(seed: int, batch: int, fields: int, dense: int, mean_length: int) -> dict[str, Tensor]:
    """Return one batch; ids are any 40-bit numbers, because hashing takes them all."""
    generator = torch.Generator().manual_seed(seed)
    # A shuffle of fixed lengths: histories differ from user to user, their total does not differ from seed to seed.
    lengths = torch.linspace(0, 2 * mean_length, batch).long()[torch.randperm(batch, generator=generator)]
    offsets = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0)))

    def ids(*shape: int) -> Tensor:
        return torch.randint(0, 1 << 40, shape, generator=generator)

    return {
        "dense": torch.randn(batch, dense, generator=generator),
        "field_ids": ids(batch, fields),
        "history": ids(int(lengths.sum())),
        "offsets": offsets,
        "candidate": ids(batch),
    }


DYNAMIC = {
    "dense": ("batch",),
    "field_ids": ("batch",),
    "history": ("entries",),
    "offsets": ("users",),
    "candidate": ("batch",),
}


def sample_inputs(seed: int = 0) -> list[dict[str, Any]]:
    """Return a small and a large batch of users; the large one comes three times as often."""
    return [
        {
            "name": f"batch{batch}",
            "weight": weight,
            "kwargs": _users(seed, batch, 6, 8, 24),
            "dynamic": DYNAMIC,
        }
        for batch, weight in ((32, 1), (256, 3))
    ]


def sample_inputs_long(seed: int = 0) -> list[dict[str, Any]]:
    """Return a batch of 2048 users of the small model."""
    return [{"name": "batch2048", "kwargs": _users(seed, 2048, 6, 8, 24), "dynamic": DYNAMIC}]


def sample_inputs_large(seed: int = 0) -> list[dict[str, Any]]:
    """Return a batch of 2048 users with 200 entries each on average."""
    users = _users(seed, 2048, 26, 13, 200)
    users["dense"] = users["dense"].bfloat16()
    return [{"name": "batch2048", "kwargs": users, "dynamic": DYNAMIC}]


def main() -> None:
    """Run the model on every set of inputs and print what comes out."""
    model = build()
    with torch.inference_mode():
        for item in sample_inputs():
            clicks = model(**item["kwargs"])
            print(f"{item['name']}: clicks {tuple(clicks.shape)}, mean {clicks.mean():.4f}")


if __name__ == "__main__":
    main()
