"""`lln.zoo.attention`: what a function gives does not depend on padding, on the length it was first called with, or on the
dtype."""

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lln.zoo
from lln.zoo.mechanism import Mechanism
from lln.zoo.registry import member
from tests.zoo.variants import SMALL

FUNCTIONS = [n for n in lln.zoo.names() if not lln.zoo.card(n).learned]
SEEDED = [n for n in FUNCTIONS if "seed" in {f.name for f in dataclasses.fields(member(n).options)}]
EVERY = pytest.mark.parametrize("name", FUNCTIONS)
EXACT = {"rtol": 1e-9, "atol": 1e-11}
LENGTH = 13


def inputs(length: int = LENGTH, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, length, 4, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


def small(name: str) -> dict[str, object]:
    """Options at which the member's structure shows at a dozen tokens."""
    return SMALL.get(name, [{}])[0]


def padded(tensors: list[Tensor], left: int, right: int) -> tuple[list[Tensor], Tensor]:
    """With so many positions of rubbish before and after, and the mask that says so."""
    mask = F.pad(torch.ones(2, tensors[0].shape[2], dtype=torch.bool), (left, right))
    return [F.pad(x, (0, 0, left, right), value=5.0) for x in tensors], mask


@EVERY
@pytest.mark.parametrize("max_length", [None, 64])
@pytest.mark.parametrize("said", ["keys", "keys and queries"])
@pytest.mark.parametrize("before_after", [(0, 1), (0, 40), (7, 0), (3, 20)], ids=str)
def test_padding_to_another_length_changes_nothing(
    name: str, max_length: int | None, said: str, before_after: tuple[int, int]
) -> None:
    function = lln.zoo.attention(name, max_length=max_length, **small(name))
    alone = function(*inputs())
    longer, mask = padded(inputs(), *before_after)
    out = function(*longer, mask, mask if said == "keys and queries" else None)
    left = before_after[0]
    torch.testing.assert_close(out[:, :, left : left + LENGTH], alone, **EXACT)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if lln.zoo.card(n).causal])
def test_padding_to_another_length_changes_nothing_causally(name: str) -> None:
    function = lln.zoo.attention(name, max_length=64, **small(name))
    longer, mask = padded(inputs(), 0, 40)
    out = function(*longer, mask, is_causal=True)[:, :, :LENGTH]
    torch.testing.assert_close(out, function(*inputs(), is_causal=True), **EXACT)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if lln.zoo.card(n).causal and n != "cosformer"])
def test_later_tokens_change_nothing_causally_without_max_length(name: str) -> None:
    function = lln.zoo.attention(name, **small(name))
    out = function(*inputs(), is_causal=True)
    shorter = function(*(x[:, :, :5] for x in inputs()), is_causal=True)
    torch.testing.assert_close(out[:, :, :5], shorter, **EXACT)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if lln.zoo.card(n).cross])
@pytest.mark.parametrize("before_after", [(0, 2), (0, 9), (4, 0)], ids=str)
def test_padding_the_keys_of_another_sequence_changes_nothing(name: str, before_after: tuple[int, int]) -> None:
    """Also where padding gives it as many keys as there are queries."""
    q, k, v = inputs(9)[0], *inputs(7)[1:]
    function = lln.zoo.attention(name, **small(name))
    alone = function(q, k, v)
    (k, v), mask = padded([k, v], *before_after)
    out = function(q, k, v, mask, torch.ones(2, 9, dtype=torch.bool))
    torch.testing.assert_close(out, alone, **EXACT)


def test_causal_cosformer_without_max_length_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"needs max_length.*later tokens would change earlier rows"):
        lln.zoo.attention("cosformer")(*inputs(), is_causal=True)


@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize("max_length", [None, 4096])
def test_the_random_draw_is_the_same_at_every_length(
    name: str, max_length: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token more, or a thousand, and the first call's length have no influence on it."""
    used: list[dict[str, Tensor]] = []
    run = Mechanism.forward

    def forward(self: Mechanism, *arguments: object, **more: object) -> Tensor:
        used.append({key: buffer.clone() for key, buffer in self.named_buffers()})
        return run(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Mechanism, "forward", forward)
    function = lln.zoo.attention(name, max_length=max_length)
    for length in (64, 65, 1, 500):
        function(*inputs(length))
    assert used[0] and all(torch.equal(used[0][key], now[key]) for now in used for key in used[0])


@pytest.mark.parametrize("name", SEEDED)
def test_two_functions_of_one_seed_agree_and_of_none_do_not(name: str) -> None:
    q, k, v = inputs(70)
    first, again, other = (lln.zoo.attention(name, seed=seed, **small(name)) for seed in (3, 3, 4))
    again(*inputs(5))  # what it was called with before does not matter
    assert torch.equal(first(q, k, v), again(q, k, v))
    assert not torch.equal(first(q, k, v), other(q, k, v))
    assert not torch.equal(lln.zoo.attention(name, **small(name))(q, k, v), first(q, k, v))


def test_a_token_that_stands_alone_in_its_features_moves_the_output_a_little() -> None:
    """65 tokens against 64: new features would change the output by as much as it has."""
    q, k, v = inputs(65, torch.float32)
    for name in ("performer", "rfa"):
        function = lln.zoo.attention(name)
        longer, shorter = function(q, k, v), function(*(x[:, :, :64] for x in (q, k, v)))
        assert (longer[:, :, :64] - shorter).norm() < 0.2 * shorter.norm()


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_dtype_computes_the_same_function(name: str, dtype: torch.dtype) -> None:
    if name == "reformer" and dtype != torch.float32:
        pytest.skip("rounding moves tokens to other buckets")
    function = lln.zoo.attention(name, **small(name))
    rounded = inputs(dtype=dtype)
    out, true = function(*rounded), function(*(x.double() for x in rounded))
    assert out.dtype == dtype
    assert (out.double() - true).norm() <= 20 * torch.finfo(dtype).eps * true.norm()


@EVERY
def test_one_mechanism_serves_every_length_and_dtype(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mechanism for each would be kept for ever."""
    made: list[str] = []
    make = Mechanism.__init__

    def counted(self: Mechanism, *arguments: Any) -> None:
        made.append(type(self).__name__)
        make(self, *arguments)

    monkeypatch.setattr(Mechanism, "__init__", counted)
    function = lln.zoo.attention(name, **small(name))
    for length in range(4, 14):
        for dtype in (torch.float32, torch.float64):
            function(*inputs(length, dtype))
    assert len(made) == 1
