"""alpha and beta of a sequence that is cut anywhere are those of the whole: the same sample, to the bit; the same sums."""

import warnings
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lln
from lln.ops.moments import MatchOperands, plain
from tests.ops.cases import MASKS, boundaries, key_mask
from tests.parallel.pool import Pool
from tests.parallel.remote import drawn_cuts


def drawn(
    seed: int, tokens: int, batch: int = 2, groups: int = 2, dim: int = 16, spike: bool = False
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, 2 * groups, tokens, dim, generator=generator)
    k = torch.randn(batch, 2, tokens, dim, generator=generator)
    return (3 * q, k.pow(3)) if spike else (q, k)  # sharp attention asks for the large sample


def over(pool: Pool, q: Tensor, k: Tensor, size: int, seed: int, **arguments: Any) -> list[list[Tensor]]:
    key_cuts = drawn_cuts(k.shape[2], size, seed)
    query_cuts = key_cuts if q.shape[2] == k.shape[2] else drawn_cuts(q.shape[2], size, seed + 1)
    upstream = torch.linspace(1, 2, q.shape[1])[:, None, None]
    payloads = []
    for (a, b), (c, d) in zip(pairwise(query_cuts), pairwise(key_cuts), strict=True):
        own = dict(arguments)
        if own.get("key_mask") is not None:
            own["key_mask"] = own["key_mask"][:, c:d].clone()
        payloads.append({
            "q": q[:, :, a:b].clone(), "k": k[:, :, c:d].clone(), "arguments": own, "upstream": upstream,
        })  # fmt: skip
    return pool.run("match", payloads)


@settings(max_examples=30)
@given(
    st.integers(0, 10_000), st.one_of(st.integers(1, 150), st.sampled_from((97, 600, 2500))), st.integers(2, 4),
    st.sampled_from((*MASKS, "packed", "of other queries")), st.booleans(), st.booleans(),
)  # fmt: skip
def test_the_sample_is_that_of_the_whole(
    pool: Pool, seed: int, tokens: int, size: int, kind: str, center_keys: bool, spike: bool
) -> None:
    batch = 1 if kind == "packed" else 2
    q, k = drawn(seed, tokens, batch, spike=spike)
    generator = torch.Generator().manual_seed(seed)
    edges = boundaries(tokens, generator) if kind == "packed" else None
    mask = None if kind in ("packed", "of other queries") else key_mask(kind, batch, tokens, generator)
    if kind == "of other queries":
        q = drawn(seed + 1, tokens // 2 + 1, batch, spike=spike)[0]
        if q.shape[2] == tokens:
            return
    whole = plain.forward(MatchOperands(q, k, mask, edges, "sample", "entropy", "head", 0.25, center_keys))
    found = over(pool, q, k, size, seed, key_mask=mask, cu_seqlens=edges, scale=0.25, center_keys=center_keys)
    for alpha, beta in found:
        assert torch.equal(alpha[:, ::2, 0, 0], whole.alpha.float())
        assert torch.equal(beta[:, :, 0, 0], whole.beta.float())


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("target", ["entropy", "variance", "paper"])
@pytest.mark.parametrize("kind", ["none", "holes", "packed"])
def test_the_table_is_read_at_the_statistics_of_the_whole(pool: Pool, size: int, target: str, kind: str) -> None:
    q, k = (t.double() for t in drawn(5, 300, batch=1 if kind == "packed" else 2))
    generator = torch.Generator().manual_seed(5)
    arguments: dict[str, Any] = {"target": target, "method": "table"}
    if kind == "packed":
        arguments["cu_seqlens"] = torch.tensor([0, 40, 190, 300])
    else:
        arguments["key_mask"] = key_mask(kind, 2, 300, generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = lln.match_moments(q, k, **arguments)
    for found in over(pool, q, k, size, 5, **arguments):
        torch.testing.assert_close(found, list(whole), rtol=1e-12, atol=0)


def test_gradients_through_the_statistics_are_those_of_the_whole(pool: Pool) -> None:
    q, k = (t.double().requires_grad_() for t in drawn(9, 200))
    arguments: dict[str, Any] = {"method": "table", "detach": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alpha, _ = lln.match_moments(q, k, **arguments)
    expected = torch.autograd.grad((alpha * torch.linspace(1, 2, q.shape[1])[:, None, None]).sum(), (q, k))
    found = over(pool, q.detach(), k.detach(), 3, 9, **arguments)
    for i, whole in enumerate(expected):
        torch.testing.assert_close(torch.cat([f[2 + i] for f in found], dim=2), whole, rtol=1e-9, atol=1e-12)
