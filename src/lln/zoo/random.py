"""Random draws from a seed, or from torch's global generator if there is none."""

import torch


def generator(seed: int | None) -> torch.Generator | None:
    """None stands for torch's global generator, which `torch.manual_seed` governs."""
    return None if seed is None else torch.Generator().manual_seed(seed)
