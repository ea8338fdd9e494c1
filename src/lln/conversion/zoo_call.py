"""A call of a model answered by a member of the zoo, which is a function of q, k and v with as many heads of each."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lln.conversion.asked import Call


def answered_by(member: Callable[..., Any], call: Call) -> Tensor:
    """(B, Hq, Nq, Dv); packed sequences one by one."""
    groups = call.q.shape[1] // call.k.shape[1]
    q = call.q * (call.scale * call.q.shape[3] ** 0.5)  # members scale by D**-0.5 themselves
    k, v = (x if groups == 1 else x.repeat_interleave(groups, dim=1) for x in (call.k, call.v))
    if call.cu_seqlens is not None:
        edges = call.cu_seqlens.tolist()
        pieces = [
            member(*(x[:, :, a:b] for x in (q, k, v)), None, None, call.causal) for a, b in itertools.pairwise(edges)
        ]
        return torch.cat(pieces, dim=2)
    counts = call.key_mask
    if call.cross:  # the keys' padding says nothing about the queries, also where there are as many
        counts = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device)
    out: Tensor = member(q, k, v, call.key_mask, counts, call.causal)
    return out
