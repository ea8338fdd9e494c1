"""The contract of a step of LLN+Diag: token by token, every backend gives what the whole sequence gives at once."""

import pytest
import torch
from torch import Tensor

from lln.ops import diag
from lln.ops.blocks.open_block import OpenBlock
from lln.ops.lln import State
from tests.ops.subjects import Subject, compute, every_subject
from tests.ops.test_diag_contract import plainly, widened
from tests.ops.tolerance import OUTPUT_FACTOR, assert_as_good

BATCH, HEADS, GROUPS, LENGTH, DIM, VALUE_DIM, BLOCK = 3, 2, 2, 19, 8, 6, 5


def sequence(dtype: torch.dtype, masked: bool, mapped: bool) -> diag.Operands:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    scale = torch.float64 if dtype == torch.float64 else torch.float32
    q, k = normal(BATCH, HEADS * GROUPS, LENGTH, DIM), normal(BATCH, HEADS, LENGTH, DIM)
    far = (q * 0.5, k.flip(-1)) if mapped else (None, None)
    # One sample is padded on the left, and one has a hole.
    mask = torch.arange(LENGTH) >= torch.tensor([[0], [7], [0]])
    mask[2, 4:11] = False
    return diag.Operands(
        q, k, normal(BATCH, HEADS, LENGTH, VALUE_DIM), *far,
        (0.7 + 0.1 * normal(BATCH, HEADS * GROUPS, DIM)).to(scale), (0.8 + 0.1 * normal(BATCH, HEADS, DIM)).to(scale),
        normal(BATCH, HEADS * GROUPS, DIM).to(scale), torch.rand(BATCH, HEADS * GROUPS, 1, generator=generator).to(scale),
        mask if masked else None, None, BLOCK, 0.3, True, keep_branch=False,
    )  # fmt: skip


def token(x: diag.Operands, at: int) -> diag.Operands:
    def cut(t: Tensor | None) -> Tensor | None:
        return None if t is None else t[:, :, at : at + 1]

    mask = None if x.key_mask is None else x.key_mask[:, at : at + 1]
    return x._replace(q=cut(x.q), k=cut(x.k), v=cut(x.v), lln_q=cut(x.lln_q), lln_k=cut(x.lln_k), key_mask=mask)


def at_the_start(x: diag.Operands) -> tuple[State, OpenBlock]:
    state = State.without_keys(x.beta, VALUE_DIM, torch.float64)
    keys, values = (t.new_zeros(*t.shape[:2], BLOCK, t.shape[3]) for t in (x.k, x.v))
    nothing = torch.zeros(BATCH, dtype=torch.bool)
    return state, OpenBlock(keys, values, torch.zeros(BATCH, BLOCK, dtype=torch.bool), nothing.long(), nothing)


@every_subject("diag_step")
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_steps_give_what_the_whole_sequence_gives(
    subject: Subject, dtype: torch.dtype, masked: bool, mapped: bool
) -> None:
    x = sequence(dtype, masked, mapped)
    state, block = at_the_start(x)
    expected_block, rows = block, []
    for at in range(LENGTH):
        one = diag.StepOperands.of(token(x, at), state, block)
        before = [t.clone() for t in one if isinstance(t, Tensor)]
        found = compute(subject, one)
        rows.append(found.out)
        unchanged = [torch.equal(a, t) for a, t in zip(before, [t for t in one if isinstance(t, Tensor)], strict=True)]
        assert all(unchanged), "a step leaves what it is given as it was"
        counts = torch.ones(BATCH, 1, dtype=torch.bool) if one.key_mask is None else one.key_mask
        *_, expected_block = expected_block.with_token(one.k, one.v, counts)
        state, block = State(found.maximum, found.summed, found.normaliser), found.block
        for name in ("keys", "values", "counts", "filled", "started"):
            assert torch.equal(getattr(block, name), getattr(expected_block, name)), f"{name} after token {at}"
    true = diag.diag(widened(x), "oracle").out
    size, unit = float(x.v.abs().max()), torch.finfo(dtype).eps
    assert_as_good(torch.cat(rows, dim=2), [plainly(x)], true, OUTPUT_FACTOR, size, unit, 1e-15, "output")


@every_subject("diag_step")
def test_a_block_that_says_it_holds_more_than_it_has_room_for_is_refused(subject: Subject) -> None:
    x = sequence(torch.float32, False, False)
    state, block = at_the_start(x)
    one = diag.StepOperands.of(token(x, 0), state, block)._replace(filled=torch.tensor([0, BLOCK, 0]))
    with pytest.raises(ValueError, match="filled of the state must be from 0 to 4"):
        compute(subject, one)
