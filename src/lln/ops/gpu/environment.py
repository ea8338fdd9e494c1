"""Whether the Triton kernels can run here, and on which tensors. Triton itself is not imported to find out."""

import os
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

LARGEST_HEAD = 256


def interpreted() -> bool:
    """Whether kernels run on the CPU, in NumPy, one program after the other: for tests, on machines without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@lru_cache
def unavailable() -> str | None:
    if find_spec("triton") is None:
        return "triton is not installed (pip install 'lln-attention[gpu]')"
    if not interpreted() and not torch.cuda.is_available():
        return "there is no GPU (TRITON_INTERPRET=1, set before Python starts, runs its kernels on the CPU, for tests)"
    return None


def elsewhere(x: Tensor) -> str | None:
    """Why the kernels cannot read this tensor where it is, or None."""
    if x.device.type != ("cpu" if interpreted() else "cuda"):
        return f"its kernels run on a GPU, and the tensors are on {x.device.type}"
    return None


def refuses(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why the kernels cannot take these tensors, or None; for every attention."""
    if q.dtype == torch.float64:
        return elsewhere(q) or "its kernels compute in float32, and the tensors are float64"
    if max(q.shape[-1], v.shape[-1]) > LARGEST_HEAD:
        return f"its kernels take head sizes up to {LARGEST_HEAD}, and these are {q.shape[-1]} and {v.shape[-1]}"
    return elsewhere(q)
