"""What the launches do to memory: they write all of their results, read nothing back, and count in 64 bits.

Run by `test_contract` in a process under Triton's interpreter.
"""

import os
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_contract in a process under Triton's interpreter"
)

from lln.ops.blocks import Operands as BlockOperands  # noqa: E402
from lln.ops.blocks import blocks  # noqa: E402
from lln.ops.diag import Operands as DiagOperands  # noqa: E402
from lln.ops.diag import diag  # noqa: E402
from lln.ops.lln import Operands, attention  # noqa: E402
from lln.ops.moments import MatchOperands, match, moments, search  # noqa: E402
from lln.ops.moments import Operands as MomentOperands  # noqa: E402
from lln.ops.near_far import Operands as NearFarOperands  # noqa: E402
from lln.ops.near_far import near_far  # noqa: E402

READ_BACK = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero")


class NothingIsReadBack(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        assert name not in READ_BACK, f"{name} waits for the device"
        return function(*args, **(kwargs or {}))


def operands(kind: str, causal: bool, length: int = 70) -> Operands:
    heads, dim = 2, 16
    q, k, v = (torch.randn(1, heads, length, dim) for _ in range(3))
    packed = torch.tensor([0, 40, 40, length]) if kind == "packed" else None
    sequences = 3 if kind == "packed" else 1
    scale = torch.ones(sequences, heads, dim)
    counts = torch.rand(1, length) < 0.7 if kind == "masked" else None
    start = (torch.zeros_like(scale), torch.randn(sequences, heads, dim, dim), torch.ones_like(scale))
    return Operands(q, k, v, scale, scale, scale, counts, packed, *start, is_causal=causal)


def everything(operation: Any, x: Any) -> list[torch.Tensor]:
    """All results and all gradients, by the backend itself."""
    backend = operation.backends["triton"]
    results = backend.forward(x)
    grads = {name: torch.ones_like(getattr(results, name)) for name in operation.flowing}
    found = backend.backward(grads, results, x, set(operation.differentiable))
    return [*results, *found.values()]


either_direction = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
every_kind = pytest.mark.parametrize("kind", ["plain", "masked", "packed"])


def of_blocks(x: Operands) -> BlockOperands:
    return BlockOperands(x.q, x.k, x.v, x.key_mask, x.cu_seqlens, 24, 0.3, x.is_causal)


def of_diag(x: Operands) -> DiagOperands:
    weight = torch.rand(*x.q.shape[:3])
    scales = (x.alpha, x.beta, x.bias)
    return DiagOperands(
        x.q, x.k, x.v, None, None, *scales, weight, x.key_mask, x.cu_seqlens, 24, 0.3, x.is_causal, keep_branch=True
    )


def of_near_far(x: Operands) -> NearFarOperands:
    weights = torch.rand(*x.q.shape[:2], 4)
    scales = (x.alpha, x.beta, x.bias)
    return NearFarOperands(x.q, x.k, x.v, *scales, weights, x.key_mask, x.cu_seqlens, 12, 1, 3, 0.3, x.is_causal)


@either_direction
@every_kind
def test_launches_leave_no_memory_unwritten(kind: str, causal: bool) -> None:
    x = operands(kind, causal)
    torch.use_deterministic_algorithms(True)  # fills memory that nobody has written with NaN
    try:
        assert torch.empty(3).isnan().all()
        found = everything(attention, x) + everything(blocks, of_blocks(x)) + everything(diag, of_diag(x))
        found += moments.backends["triton"].forward(MomentOperands(x.q, x.key_mask, x.cu_seqlens))
        found += everything(near_far, of_near_far(x))
    finally:
        torch.use_deterministic_algorithms(False)
    for t in found:
        assert not t.isnan().any()


@either_direction
@every_kind
def test_launches_read_nothing_back(kind: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = launches_without_running(monkeypatch)
    x = operands(kind, causal)
    with NothingIsReadBack():
        everything(attention, x)
        everything(blocks, of_blocks(x))
        everything(diag, of_diag(x))
        moments.backends["triton"].forward(MomentOperands(x.q, x.key_mask, x.cu_seqlens))
        everything(near_far, of_near_far(x))
    assert len(launched) > 20


def to_match(kind: str, method: str, sigma: float = 1.0, length: int = 70, dim: int = 8) -> MatchOperands:
    generator = torch.Generator().manual_seed(5)
    queries = 50 if kind == "fewer queries" else length
    q = sigma * torch.randn(2, 2, queries, dim, generator=generator)
    k = sigma * torch.randn(2, 1, length, dim, generator=generator) + 1
    counts, packed = None, None
    if kind == "masked":
        counts = torch.rand(2, length, generator=generator) < 0.7
        q, k = (torch.where(counts[:, None, :, None], x, torch.nan) for x in (q, k))
    if kind == "equal":  # softmax looks at one key alone, and alpha is bounded
        q = k.expand_as(q).contiguous()
    if kind == "packed":
        q, k, packed = q[:1], k[:1], torch.tensor([0, length // 3, length // 3, length])
    return MatchOperands(q, k, counts, packed, method, "entropy", "head", dim**-0.5, kind == "masked")


@every_kind
@pytest.mark.parametrize("backend, method", [("triton", "sample"), ("chunked", "sample"), ("chunked", "table")])
def test_launches_of_matching_read_nothing_back(
    backend: str, method: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain torch may look at a value on the CPU to stop early; on a GPU it must not."""
    launched = launches_without_running(monkeypatch)
    monkeypatch.setattr(search, "may_look", lambda x: False)
    with NothingIsReadBack():
        match.backends[backend].forward(to_match(kind, method))
    if backend == "triton":
        before = {"plain": [], "masked": ["list_tokens"], "packed": []}[kind]
        laid_out = ["_lay_out"] if kind == "packed" else []
        assert launched == [
            *before, "spread", *laid_out, "key_scores", "small_search", "large_search"
        ]  # fmt: skip


@pytest.mark.parametrize(
    "kind, sigma, length, dim",
    [(kind, *size) for kind in ("plain", "masked", "packed", "fewer queries") for size in ((0.8, 70, 8), (3.0, 420, 8))]
    + [("packed", 2.0, 90, 72), ("equal", 2.0, 90, 72)],
)
def test_launches_of_matching_agree_with_plain_torch(kind: str, sigma: float, length: int, dim: int) -> None:
    """Wide inputs need the large sample, and more keys than it draws evenly; large heads have smaller tiles there."""
    x = to_match(kind, "sample", sigma, length, dim)
    torch.use_deterministic_algorithms(True)  # fills memory that nobody has written with NaN
    try:
        found = match(x, "triton")
    finally:
        torch.use_deterministic_algorithms(False)
    for actual, true in zip(found, match(x, "chunked"), strict=True):
        assert actual.dtype == true.dtype
        torch.testing.assert_close(actual, true, atol=1e-5, rtol=1e-5)


def test_launches_of_matching_see_neither_padding_nor_batch_mates() -> None:
    x = to_match("masked", "sample", 3.0, 420)
    assert x.key_mask is not None
    one = x._replace(q=x.q[1:], k=x.k[1:].nan_to_num(7.0), key_mask=x.key_mask[1:])
    for actual, true in zip(match(one, "triton"), match(x, "triton"), strict=True):
        assert torch.equal(actual, true[1:])


@either_direction
def test_launches_are_few(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = launches_without_running(monkeypatch)
    x = operands("plain", causal)

    def count(operation: Any, y: Any, wanted: set[str]) -> tuple[int, int]:
        launched.clear()
        backend = operation.backends["triton"]
        results = backend.forward(y)
        forward = len(launched)
        backend.backward(
            {name: results.out if name == "out" else None for name in operation.flowing}, results, y, wanted
        )
        return forward, len(launched) - forward

    assert count(attention, x, {"q", "k", "v"}) == (3, 5 if causal else 3)
    assert count(attention, x, {"q", "alpha"}) == (3, 6 if causal else 4)
    assert count(blocks, of_blocks(x), {"q"}) == (1, 2)
    assert count(diag, of_diag(x), {"q"}) == ((4, 7) if causal else (3, 5))
    assert count(near_far, of_near_far(x), {"q", "beta"}) == (3, 8)
    assert count(near_far, of_near_far(x)._replace(first_tokens=0), {"q", "v"}) == (3, 6)
    launched.clear()
    moments.backends["triton"].forward(MomentOperands(x.q))
    assert len(launched) == 2


@either_direction
def test_launches_of_a_decoding_step_are_one(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = operands("plain", causal)
    one = x._replace(q=x.q[:, :, :1], k=x.k[:, :, :1], v=x.v[:, :, :1])
    for wide in (one, one._replace(start_summed=x.start_summed.double(), start_normaliser=x.start_normaliser.double())):
        for actual, true in zip(attention(wide, "triton"), attention(wide, "oracle"), strict=True):
            assert actual.dtype == true.dtype
            torch.testing.assert_close(actual, true, atol=1e-5, rtol=1e-5)
    launched = launches_without_running(monkeypatch)
    attention.backends["triton"].forward(one)
    assert launched == ["step"]


def launches_without_running(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels, as they are launched; what they would compute is of no interest here."""
    from triton.runtime.interpreter import InterpretedFunction

    launched: list[str] = []
    monkeypatch.setattr(InterpretedFunction, "run", lambda self, *a, **k: launched.append(self.__name__))
    return launched


@pytest.mark.parametrize(
    "causal, dim, value_dim", [(False, 200, 130), (True, 256, 130)], ids=["bidirectional", "causal"]
)
def test_launches_cut_large_heads(causal: bool, dim: int, value_dim: int) -> None:
    q, k = (torch.randn(1, 1, 40, dim, requires_grad=True) for _ in range(2))
    v = torch.randn(1, 1, 40, value_dim, requires_grad=True)
    scale = torch.ones(1, 1, dim)
    leaves = (q, k, v)

    def results(backend: str) -> list[torch.Tensor]:
        out = attention(Operands(q, k, v, scale, scale, is_causal=causal), backend).out
        return [out, *torch.autograd.grad(out, leaves, torch.linspace(-1, 1, out.numel()).reshape(out.shape))]

    for actual, true in zip(results("triton"), results("oracle"), strict=True):
        torch.testing.assert_close(actual, true, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "masked", "packed"])
def test_launches_of_moments_agree_with_plain_torch(kind: str) -> None:
    x = operands(kind, False)
    given = MomentOperands(x.q, x.key_mask, x.cu_seqlens)
    for actual, true in zip(moments(given, "triton"), moments(given, "chunked"), strict=True):
        torch.testing.assert_close(actual, true, atol=1e-12, rtol=1e-12)


def test_launches_count_in_64_bits() -> None:
    from lln.ops.gpu.tensors import Rows
    from tests.gpu.offsets import offsets

    found = torch.empty(16, 16, dtype=torch.int64)
    strides = (0, 0, 1 << 20, 1 << 30)  # the 60,000th row lies 6e10 elements away
    offsets[(1, 1)](Rows(0, *strides), found)  # type: ignore[arg-type]
    index = torch.arange(16)
    assert torch.equal(found, (60_000 + index)[:, None] * strides[2] + index[None] * strides[3])
