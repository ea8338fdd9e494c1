"""The public functions inside the context: matched alpha and beta, states that go on, `group=`, refusals."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import lln
from tests.parallel.pool import Pool, Raised

HEADS, KEY_HEADS, DIM = 4, 2, 8


def inputs(tokens: int, seed: int = 0, batch: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "q": (batch, HEADS, tokens, DIM),
        "k": (batch, KEY_HEADS, tokens, DIM),
        "v": (batch, KEY_HEADS, tokens, 5),
    }
    return {n: torch.randn(shape, generator=generator, dtype=torch.float64) for n, shape in shapes.items()}


def whole(function: str, tensors: dict[str, Tensor], upstream: Tensor, **arguments: Any) -> dict[str, Tensor]:
    leaves = {n: t.clone().requires_grad_() for n, t in tensors.items()}
    out = getattr(lln, function)(*leaves.values(), **arguments)
    grads = torch.autograd.grad((out * upstream).sum(), list(leaves.values()))
    return {"out": out.detach(), **{f"d{n}": g for n, g in zip(leaves, grads, strict=True)}}


def payloads(
    function: str, tensors: dict[str, Tensor], upstream: Tensor, cuts: list[int], **more: Any
) -> list[dict[str, Any]]:
    arguments = more.pop("arguments", {})
    made = []
    for a, b in pairwise(cuts):
        own = {n: t[:, :, a:b].clone() if n in ("q", "k", "v") else t for n, t in tensors.items()}
        given = {n: t[:, a:b].clone() if n == "key_mask" else t for n, t in arguments.items()}
        made.append(
            {"function": function, "tensors": own, "arguments": given, "upstream": upstream[:, :, a:b].clone(), **more}
        )
    return made


def check_against(found: list[dict[str, Tensor]], expected: dict[str, Tensor]) -> None:
    for name, true in expected.items():
        parts = [f[name] for f in found]
        if name in ("out", "dq", "dk", "dv"):
            actual = torch.cat(parts, dim=2)
        elif name.startswith("state."):
            assert all(torch.equal(p, parts[0]) for p in parts), f"{name} is not the same on every process"
            actual = parts[0]
        else:
            actual = sum(parts[1:], parts[0])
        torch.testing.assert_close(actual, true, rtol=1e-9, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("function", ["lln_attention", "lln_diag_attention", "near_far_attention"])
@pytest.mark.parametrize("kind", ["plain", "left padding", "packed"])
def test_alpha_and_beta_are_matched_to_the_whole(pool: Pool, function: str, size: int, kind: str) -> None:
    tokens = 130
    tensors = inputs(tokens, batch=1 if kind == "packed" else 2)
    upstream = torch.randn(*tensors["q"].shape[:3], 5, dtype=torch.float64)
    arguments: dict[str, Any] = {}
    if kind == "left padding":
        arguments["key_mask"] = torch.arange(tokens) >= torch.tensor([[0], [45]])
    if kind == "packed":
        arguments["cu_seqlens"] = torch.tensor([0, 30, 30, 100, 130])
    expected = whole(function, tensors, upstream, **arguments, backend="chunked")
    cuts = [0, 50, 50, tokens] if size == 3 else [0, 71, tokens]
    found = pool.run("door", payloads(function, tensors, upstream, cuts, arguments=arguments))
    check_against(found, expected)


@pytest.mark.parametrize("function", ["lln_attention", "lln_diag_attention"])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("cuts", [(0, 40, 100), (0, 7, 9, 100), (0, 0, 64, 90, 100)], ids=str)
def test_a_causal_state_goes_on_over_pieces_that_are_cut(
    pool: Pool, function: str, padded: bool, cuts: tuple[int, ...]
) -> None:
    """Two pieces of one sequence, each cut over the processes, against one process with the two pieces."""
    tokens, half = 100, 60
    size = len(cuts) - 1
    tensors = inputs(tokens, seed=3) | {
        "alpha": torch.full((2, HEADS, 1, DIM), 1.2, dtype=torch.float64),
        "beta": torch.full((2, KEY_HEADS, 1, DIM), 0.8, dtype=torch.float64),
    }
    upstream = torch.randn(2, HEADS, tokens, 5, dtype=torch.float64)
    options: dict[str, Any] = {"is_causal": True}
    through = ["summed", "normaliser"]
    if function == "lln_diag_attention":
        options |= {"block_size": 16}
        through += ["block.keys", "block.values"]
    mask = torch.arange(tokens) >= torch.tensor([[0], [70 if padded else 0]])

    leaves = {n: t.clone().requires_grad_() for n, t in tensors.items()}
    replicated = {n: t for n, t in leaves.items() if n not in ("q", "k", "v")}
    outs, state = [], None
    for first, last in ((0, half), (half, tokens)):
        own = [leaves[n][:, :, first:last] for n in ("q", "k", "v")]
        given = {"key_mask": mask[:, first:last]} if padded else {}
        out, state = getattr(lln, function)(*own, **replicated, **given, **options, state=state, return_state=True)
        outs.append(out)
    out = torch.cat(outs, dim=2)
    assert state is not None
    parts = state.state_dict()
    loss = (out * upstream).sum() + sum(t.sum() for n, t in parts.items() if n in through)
    grads = torch.autograd.grad(loss, list(leaves.values()))
    expected = {f"d{n}": g for n, g in zip(leaves, grads, strict=True)} | {
        f"state.{n}": t.detach() for n, t in parts.items()
    }
    if function == "lln_diag_attention":  # what slots that hold nothing contain is nobody's business
        counts = expected.pop("state.block.counts")
        filled = expected["state.block.filled"]
        assert (counts.sum(dim=1) <= filled).all()

    # stretch r has piece one's tokens between its cuts (scaled to the piece), then piece two's
    one, two = ([c * n // tokens for c in cuts] for n in (half, tokens - half))
    made = []
    for rank in range(size):
        places = [*range(one[rank], one[rank + 1]), *range(half + two[rank], half + two[rank + 1])]
        at = torch.tensor(places, dtype=torch.int64)
        length = one[rank + 1] - one[rank]
        own = {n: t[:, :, at].clone() if n in ("q", "k", "v") else t for n, t in tensors.items()}
        made.append({
            "function": function, "tensors": own, "arguments": {"key_mask": mask[:, at]} if padded else {},
            "options": options, "pieces": [(0, length), (length, len(places))], "through": through,
            "upstream": upstream[:, :, at].clone(), "places": at,
        })  # fmt: skip
    found = pool.run("door", made)
    order = torch.cat([m["places"] for m in made]).argsort()
    joined = {n: torch.cat([f[n] for f in found], dim=2)[:, :, order] for n in ("out", "dq", "dk", "dv")}
    torch.testing.assert_close(joined["out"], out.detach(), rtol=1e-9, atol=1e-11)
    for name, true in expected.items():
        if name in joined:
            actual = joined[name]
        elif name.startswith("state."):
            actual = found[-1][name]
        else:
            actual = sum((f[name] for f in found[1:]), found[0][name])
        if name in ("state.block.keys", "state.block.values"):
            held = torch.arange(16) < expected["state.block.filled"][:, None]
            held = held & found[-1]["state.block.started"][:, None]
            actual, true = (torch.where(held[:, None, :, None], t, 0.0) for t in (actual, true))
        torch.testing.assert_close(actual, true, rtol=1e-9, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}")


def test_members_that_disagree_are_told_so(pool: Pool) -> None:
    tensors = inputs(20)
    upstream = torch.zeros(2, HEADS, 20, 5, dtype=torch.float64)
    for change, what in (
        (lambda p: p["tensors"].update({n: t.float() for n, t in p["tensors"].items()}), "dtype"),
        (lambda p: p.update(options={"alpha": 1.0, "beta": 1.0, "is_causal": True}), "causal"),
        (lambda p: p["tensors"].update({n: t[:1] for n, t in p["tensors"].items()}), "batch"),
    ):
        made = payloads("lln_attention", tensors, upstream, [0, 10, 20], options={"alpha": 1.0, "beta": 1.0})
        change(made[1])
        made[1]["upstream"] = made[1]["upstream"][: made[1]["tensors"]["q"].shape[0]]
        with pytest.raises(Raised) as raised:
            pool.run("door", made)
        for error in raised.value.errors:
            assert error is not None and error[0] == "ValueError" and f"disagree about the {what}" in error[1]


def test_boundaries_must_be_those_of_the_whole(pool: Pool) -> None:
    tensors = inputs(20, batch=1)
    upstream = torch.zeros(1, HEADS, 20, 5, dtype=torch.float64)
    arguments = {"cu_seqlens": torch.tensor([0, 4, 10])}
    with pytest.raises(Raised, match="must rise from 0 to the total length 20"):
        pool.run("door", payloads("lln_attention", tensors, upstream, [0, 10, 20], arguments=arguments))


def test_what_needs_the_whole_is_refused(pool: Pool) -> None:
    with pytest.raises(Raised) as raised:
        pool.run("refused", [None, None])
    assert raised.value.errors[0] is not None
    messages = raised.value.errors[0][1].split("|")
    assert len(messages) == 5 and all("lln.parallel" in message for message in messages)


def test_positions_out_of_order_are_refused(pool: Pool) -> None:
    """Zig-zag: process r has pieces r and 2 P - 1 - r."""
    pieces = torch.arange(40).split(10)
    pool.run("positions", [torch.cat(pieces[:2]), torch.cat(pieces[2:])])
    with pytest.raises(Raised, match="Zig-zag") as raised:
        pool.run("positions", [torch.cat([pieces[0], pieces[3]]), torch.cat([pieces[1], pieces[2]])])
    assert all(error is not None for error in raised.value.errors)


def test_sharded_and_gathered_is_the_same_again(pool: Pool) -> None:
    for length, size in ((1000, 4), (100, 3), (1, 2), (0, 2)):
        x = torch.arange(2.0 * length).view(2, length)
        for found in pool.run("shard_and_gather", [x] * size):
            assert torch.equal(found["joined"], x) and torch.equal(found["mask"], x > 5)
            assert torch.equal(found["gradient"], torch.full((2, found["length"]), float(size)))
