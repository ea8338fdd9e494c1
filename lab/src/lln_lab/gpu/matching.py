"""What matching launches on a GPU, counted without one: tensors that hold nothing stand for those of the card.

A kernel is a launch, and so is every operation of torch that is not a mere view; each moves its tensors once. An operation that
would read a value back cannot be computed on such tensors at all, so that the count exists shows that nothing is.
"""

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lln.ops.gpu import tiles
from lln.ops.moments import MatchOperands, Moments, Operands, match, moments, plain
from lln_lab.gpu import work
from lln_lab.gpu.compiling import caught
from lln_lab.gpu.launches import Size


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.launches, self.bytes = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in function._schema.returns)
        if not is_view and "empty" not in function.overloadpacket.__name__:
            self.launches += 1
            tensors = (t for t in tree_leaves((args, kwargs, found)) if isinstance(t, Tensor))
            self.bytes += sum(t.numel() * t.element_size() for t in tensors)
        return found


def counted(size: Size, method: str, backend: str) -> dict[str, Any]:
    """Matching on a "sample" or by the "table", for one layer. Sums over positions are a kernel: two launches, read once."""
    shape = (size.batch, size.heads, size.length, size.dim)
    q, k = (torch.empty(shape, dtype=size.dtype, device="meta") for _ in range(2))
    given = MatchOperands(q, k, None, None, method, "entropy", "head", size.dim**-0.5, False)
    mode = Counted()

    def by_kernels(x: Tensor, *others: Any) -> Moments:
        mode.launches += 2
        mode.bytes += x.numel() * x.element_size()
        return moments.empty(Operands(x))

    with tiles.compiled_for("sm_90"), patch.object(plain, "computed_moments", by_kernels), mode, caught() as kernels:
        match.backends[backend].forward(given)
    return {
        "method": method,
        "backend": backend,
        "launches": mode.launches + len(kernels),
        "bytes": mode.bytes + sum(map(work.bytes_moved, kernels)),
        "bytes_of_q_and_k": 2 * q.numel() * q.element_size(),
    }
