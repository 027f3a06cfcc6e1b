"""Robot arms in a batch: spatial transforms (6x6) and poses (4x4), chained joint by joint.

kernelwright optimize examples/models/transforms.py:build
Thousands of products, each smaller than what a library needs to begin one: a kernel that keeps a matrix in registers
takes a fraction of the time, whatever the machine.
"""

import torch
from torch import Tensor, nn

BATCH = 4096


class Arms(nn.Module):
    """One joint further: what its motion does to velocities, and where its tool is."""

    def forward(self, motion: Tensor, joint: Tensor, pose: Tensor, tool: Tensor) -> tuple[Tensor, Tensor]:
        """Return the velocities' transform, its negative part cut off by a stop, and the tool's pose within limits."""
        return torch.relu(motion @ joint), torch.tanh(pose @ tool)


def build() -> Arms:
    """Return the model; it has no weights."""
    return Arms().eval()


def sample_inputs(seed: int = 0) -> tuple[Tensor, ...]:
    """Return transforms and poses of a batch of arms."""
    rng = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(BATCH, size, size, generator=rng) for size in (6, 6, 4, 4))


def main() -> None:
    """Run the model once and print what comes out."""
    with torch.inference_mode():
        velocities, poses = build()(*sample_inputs())
    print(f"velocities {tuple(velocities.shape)}, poses {tuple(poses.shape)}, mean {poses.mean():.4f}")


if __name__ == "__main__":
    main()
