"""The sample on which alpha and beta are matched, drawn from a sequence that several processes hold.

Which queries and keys are drawn depends on their places among the tokens that count and on their scores, not on where they lie:
every process finds the same ones and is given them, a few thousand rows. The rest is done by all alike.
"""

import torch
from torch import Tensor

from lln.ops.moments.sampling import LONG_KEYS, Rows, Sampler
from lln.parallel.processes import Processes
from lln.parallel.tokens import HeldTokens


class SamplerOver(Sampler):
    """Draws the samples that `Sampler` would draw from the whole."""

    def __init__(
        self,
        processes: Processes,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None,
        own_edges: Tensor | None,
        scale: float,
        center_keys: bool,
    ) -> None:
        self.processes = processes
        self.same_tokens, self.length = lengths_over(processes, q, k)
        self.q, self.k = q.unflatten(1, (k.shape[1], -1)), k
        self.groups = self.q.shape[2]
        self.keys = HeldTokens.of(processes, k, key_mask, own_edges)  # type: ignore[assignment]
        self.queries = self.keys
        if not self.same_tokens:
            self.queries = HeldTokens.of(processes, q, None, own_edges)  # type: ignore[assignment]
        self.heads = torch.arange(k.shape[1], device=k.device)[None, :, None]
        self.scale, self.center_keys = scale, center_keys
        self.spread = self._spread()
        self.largest = self._largest()

    def _take(self, rows: Rows, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Of every process what it has, zeros elsewhere: their sum is what was asked for, to the bit."""
        row, is_here = self.queries.locate(rows.position)  # type: ignore[attr-defined]
        place, key_here = self.keys.locate(positions)  # type: ignore[attr-defined]
        queries = _where_here(self.q, is_here, self.queries.here.batch, self.heads, rows.group, row)  # type: ignore[attr-defined]
        keys = _where_here(self.k, key_here, self.keys.here.batch, self.heads, place)  # type: ignore[attr-defined]
        together = torch.cat([queries, keys], dim=2)
        wide = together if together.dtype == torch.float64 else together.float()
        queries, keys = self.processes.add(wide).to(self.k.dtype).split([row.shape[2], place.shape[2]], dim=2)
        return queries, keys

    def _largest(self) -> tuple[Tensor, Tensor]:
        m, u = self._key_scores()
        by_feature, by_softmax = self.keys.largest(torch.cat([m, u], dim=1), LONG_KEYS.top).chunk(2, dim=1)
        return by_feature, by_softmax


def lengths_over(processes: Processes, q: Tensor, k: Tensor) -> tuple[bool, int]:
    """Whether queries and keys are the same tokens, and how many positions there are in all."""
    everyone = processes.gather(torch.tensor([q.shape[2], k.shape[2]], device=q.device))
    queries, keys = everyone.sum(dim=0).tolist()
    if queries != keys:
        return False, keys
    if bool((everyone[:, 0] != everyone[:, 1]).any()):
        raise ValueError(
            f"there are as many queries as keys, {keys}, but they are cut at different places: into {everyone[:, 0].tolist()} "
            f"and {everyone[:, 1].tolist()}. Whether they are the same tokens cannot be known; cut them alike"
        )
    return True, keys


def _where_here(x: Tensor, is_here: Tensor, batch: Tensor, *at: Tensor) -> Tensor:
    if x.shape[-2] == 0:
        return x.new_zeros(*is_here.shape, x.shape[-1])
    return torch.where(is_here[..., None], x[batch[:, None, None], *at], 0.0)
