"""Classification tasks drawn at random, to distil on: no real table is seen in training.

x = columns that are mixtures of Gaussians, some of them rounded to a few values
y = the classes that a random network of two layers, with noise on its output, puts the rows in
"""

import torch
from torch import Tensor


def random_task(rows: int, training: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """x (rows, features), y (training) as whole numbers from 0."""

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    features, classes, hidden = int(uniform(2, 40)), int(2 + 9 * uniform(0, 1) ** 2), int(uniform(4, 48))
    centres = normal(int(uniform(1, 8)), features) * uniform(0, 3)
    sources = centres[torch.randint(len(centres), (rows,), generator=generator)] + normal(rows, features)
    x = sources @ (torch.eye(features) + uniform(0, 1) * normal(features, features) / features**0.5)
    rounded = torch.rand(features, generator=generator) < uniform(0, 0.5)
    x = torch.where(rounded, (x * uniform(0.5, 2)).round(), x)
    inside = torch.tanh(uniform(0.5, 3) * (x @ normal(features, hidden)) / features**0.5 + normal(hidden))
    scores = inside @ normal(hidden, classes) / hidden**0.5 + normal(classes) * 0.3
    y = (scores + uniform(0, 0.4) * normal(rows, classes)).argmax(dim=-1)
    present = torch.unique(y[:training])
    return x, torch.searchsorted(present, y[:training]).clamp_max(len(present) - 1)
