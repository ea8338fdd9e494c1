"""Random draws that a seed decides, or torch's global generator where none is given."""

import torch


def generator(seed: int | None) -> torch.Generator | None:
    """None stands for torch's global generator, which `torch.manual_seed` governs."""
    return None if seed is None else torch.Generator().manual_seed(seed)
