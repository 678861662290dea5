"""One small residual network on the digits data: `python train.py --blocks 12`. Deeper ones take longer.

Needs torch. The 8x8 digits come from scikit-learn where it is installed; without it, digits of the same shape are drawn
from seeded noise around ten patterns, so that the example needs no download. Prints its accuracy and how long it took.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
from torch import nn


class Block(nn.Module):
    """Two linear layers around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.inside(x))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 pictures of 8x8 and what they show."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        noise = torch.Generator().manual_seed(0)
        patterns = torch.rand(10, 64, generator=noise)
        labels = torch.randint(0, 10, (1797,), generator=noise)
        return (patterns[labels] + 0.35 * torch.randn(1797, 64, generator=noise)).float(), labels
    data = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


def train(blocks: int, width: int, epochs: int, batch: int, device: str) -> float:
    """Train and return the accuracy on the fifth of the data that was held back."""
    torch.manual_seed(42)
    images, labels = (part.to(device) for part in digits())
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(42)).to(device)
    test, rest = order[: len(order) // 5], order[len(order) // 5 :]
    model = nn.Sequential(nn.Linear(64, width), *(Block(width) for _ in range(blocks)), nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for part in rest[torch.randperm(len(rest), device=device)].split(batch):
            loss = nn.functional.cross_entropy(model(images[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return float((model(images[test]).argmax(1) == labels[test]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    begin = time.monotonic()
    accuracy = train(args.blocks, args.width, args.epochs, args.batch, device)
    found = {"blocks": args.blocks, "accuracy": round(accuracy, 4), "seconds": round(time.monotonic() - begin, 3)}
    print(json.dumps({**found, "device": device, "gpu": os.environ.get("CUDA_VISIBLE_DEVICES")}))
    if "SHOAL_OUTPUT_DIR" in os.environ:
        with open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "metrics.json"), "w") as file:  # noqa: PTH123
            json.dump(found, file)


if __name__ == "__main__":
    main()
