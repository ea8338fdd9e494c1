"""The C interface refuses what it cannot read or write. `make sanitize` makes 100,000 such calls under AddressSanitizer."""

import ctypes
import os

import pytest
import torch

from lln.ops.blocks import Operands as BlockOperands
from lln.ops.blocks import native as native_blocks
from lln.ops.lln import native
from lln.ops.moments import Operands as MomentsOperands
from lln.ops.moments import native as native_moments
from lln.ops.native.call import filled, run
from lln.ops.native.interface import CALLS, MomentsCall
from lln.ops.native.library import library
from tests.native.fuzz import fuzz
from tests.native.helpers import random_call

NUMBER = int(os.environ.get("LLN_FUZZ_CALLS", "600"))


def test_damaged_calls_are_refused_in_words_and_touch_nothing() -> None:
    tally = fuzz(NUMBER, seed=0)
    assert tally.calls >= NUMBER and tally.refused > NUMBER / 2
    print(f"{tally.calls} calls, {tally.refused} refused with {len(tally.reasons)} messages")


@pytest.mark.parametrize("function", CALLS)
def test_an_empty_call_and_no_call_are_refused(function: str) -> None:
    assert library().functions[function](None) == b"there is no call"
    assert library().functions[function](ctypes.byref(CALLS[function](threads=1))).endswith(b"is missing")


def test_an_instruction_set_that_is_not_there_is_refused_by_number() -> None:
    for isa in (-1, len(library().usable), 2**40):
        refusal = library().functions["moments"](ctypes.byref(MomentsCall(isa=isa, threads=1)))
        assert refusal == b"there is no such instruction set on this machine"


def test_the_bytes_behind_a_pointer_are_those_of_its_storage() -> None:
    whole = torch.zeros(10, 6)
    x = filled(MomentsCall, x=whole[3:, 2:]).x
    assert x.bytes == (60 - 20) * 4
    assert list(x.size) == [7, 4, 0, 0] and list(x.stride) == [6, 1, 0, 0]
    other = filled(MomentsCall, x=torch.zeros(2, dtype=torch.complex64)[1:]).x
    assert other.dtype not in range(7) and other.bytes <= 8


def test_storage_that_was_taken_away_is_not_read() -> None:
    call = random_call(10, causal=False)
    call.k.untyped_storage().resize_(8)
    with pytest.raises(ValueError, match=r"k of shape \(1, 1, 10, 16\) reaches beyond the 8 bytes behind its pointer"):
        call.forward()


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("alpha", lambda x: x[..., :8], r"alpha must have shape \(1, 1, 16\), got \(1, 1, 8\)"),
        ("beta", torch.Tensor.double, "must be float32, got float64"),
        ("bias", torch.Tensor.half, "bias must be float32, got float16"),
        ("v", lambda x: x[:, :, :5], r"v must have shape \(1, 1, 10, 16\), got \(1, 1, 5, 16\)"),
        ("k", torch.Tensor.half, "q and k must have one dtype, got float32 and float16"),
        ("key_mask", lambda _: torch.ones(1, 10, dtype=torch.uint8), "key_mask must be bool, got another dtype"),
        ("key_mask", lambda _: torch.ones(1, 9, dtype=torch.bool), r"key_mask must have shape \(1, 10\), got \(1, 9\)"),
        ("q", lambda x: x.to("meta"), "runs on the CPU; q is on meta"),
    ],
)
def test_tensors_of_another_form_are_refused_in_words(name, change, message) -> None:
    call = random_call(10, causal=False)
    setattr(call, name, change(getattr(call, name)))
    with pytest.raises(ValueError, match=message):
        call.forward()


@pytest.mark.parametrize("part", range(3))
def test_a_start_of_another_form_is_refused_in_words(part: int) -> None:
    call = random_call(10, causal=True)
    _, *state = call.forward()
    for change, message in (
        (torch.Tensor.half, "must be float(32|64), got float16"),
        (lambda x: x[..., :3], "must have shape"),
    ):
        start = [change(x) if i == part else x for i, x in enumerate(state)]
        with pytest.raises(ValueError, match=f"the starting state's .* {message}"):
            call.forward(tuple(start))


def test_a_result_may_not_overlap_itself() -> None:
    q = torch.zeros(1, 1, 4, 8)
    scale = torch.ones(1, 1, 8)
    state = {"maximum": scale, "summed": torch.empty(1, 1, 8, 8), "normaliser": scale.clone()}
    fields = {"q": q, "k": q, "v": q, "alpha": scale, "beta": scale, **state}
    with pytest.raises(ValueError, match="out is written to and may not overlap itself"):
        run("forward", **fields, out=torch.empty(1, 1, 1, 8).expand(1, 1, 4, 8))
    with pytest.raises(ValueError, match="out must have adjacent features"):
        run("forward", **fields, out=torch.empty(1, 1, 8, 4).mT)


@pytest.mark.parametrize(
    "edges, message",
    [
        (torch.tensor([0.0, 10.0]), "cu_seqlens must be int64, got float32"),
        (torch.tensor([[0, 10]]), "cu_seqlens must be 1-D, got 2-D"),
        (torch.tensor([0]), "cu_seqlens needs at least two boundaries, got 1"),
        (torch.tensor([], dtype=torch.int64), "cu_seqlens needs at least two boundaries, got 0"),
        (torch.tensor([0, 6, 4, 10]), "cu_seqlens must rise from 0 to the total length 10, got 6 before 4"),
        (torch.tensor([0, 10**9], dtype=torch.int32), "must rise from 0 to the total length 10, got 0 to 1000000000"),
    ],
)
def test_boundaries_of_another_form_are_refused_by_every_call(edges, message) -> None:
    x, blocks = torch.randn(1, 1, 10, 16), random_call(10, causal=False)
    for call in (
        lambda: native_moments.forward(MomentsOperands(x, None, edges)),
        lambda: native.forward(blocks.operands._replace(cu_seqlens=edges)),
        lambda: native_blocks.forward(BlockOperands(x, x, x, None, edges, 4, 1.0, False)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
