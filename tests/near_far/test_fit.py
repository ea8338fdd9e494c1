"""The four weights in closed form: planted ones are found, and a reference says the same."""

from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lln.near_far import NEUTRAL, near_far_attention
from lln.near_far.fit import CHOICES, RIDGES, NearFarFit, near_far_parts
from lln.ops.near_far import WEIGHTS

RECORD = [0.002672, 0.036765, 0.983715, 0.961796]  # head 2, three seeds, blocks of 16


def qkv(seed: int, length: int = 100) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(2, 4, length, 8, generator=generator, dtype=torch.float64)
    k = torch.randn(2, 2, length, 8, generator=generator, dtype=torch.float64)
    mixing = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    return q, k, k @ mixing + torch.randn(2, 2, length, 8, generator=generator, dtype=torch.float64)


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


@pytest.mark.parametrize("reach", [{}, {"neighbours": 1, "first_tokens": 3}], ids=["block", "wide"])
def test_the_output_is_what_the_weights_make_of_the_parts(reach: dict[str, Any]) -> None:
    q, k, v = qkv(0)
    weights = torch.randn(4, 4, dtype=torch.float64)
    fixed, parts = near_far_parts(q, k, v, block_size=16, **reach)
    out = fixed + torch.einsum("bhndi,hi->bhnd", parts, weights)
    torch.testing.assert_close(out, near_far_attention(q, k, v, weights=weights, block_size=16, **reach))


def test_planted_weights_are_found_and_leave_no_error() -> None:
    fit, planted = NearFarFit(), torch.randn(4, 4, dtype=torch.float64)
    for seed in range(2):
        q, k, v = qkv(seed)
        target = near_far_attention(q, k, v, weights=planted, block_size=16)
        fit.add(target, *near_far_parts(q, k, v, block_size=16))
    torch.testing.assert_close(fit.weights(ridge=0.0), planted)
    assert float(fit.error(planted).max()) < 1e-12 < float(fit.error(torch.zeros(4, 4)).min())


def test_the_weights_are_those_of_a_least_squares_routine_and_of_the_record() -> None:
    fit, rows, rights = NearFarFit(), [], []
    for seed in range(3):
        q, k, v = qkv(seed)
        fixed, parts = near_far_parts(q, k, v, block_size=16)
        fit.add(softmax(q, k, v), fixed, parts)
        rows.append(parts[:, 2].flatten(0, 2))
        rights.append((softmax(q, k, v) - fixed)[:, 2].flatten())
    expected, *_ = numpy.linalg.lstsq(torch.cat(rows).numpy(), torch.cat(rights).numpy(), rcond=None)
    found = fit.weights(ridge=0.0)
    torch.testing.assert_close(found[2], torch.from_numpy(expected))
    torch.testing.assert_close(found[2], torch.tensor(RECORD, dtype=torch.float64), atol=1e-5, rtol=1e-5)


def test_fitted_weights_are_nearer_to_softmax_on_other_inputs_than_neutral_ones() -> None:
    fit, q, k, v = NearFarFit(), *qkv(0)
    fit.add(softmax(q, k, v), *near_far_parts(q, k, v, block_size=16))
    q, k, v = qkv(1)
    errors = [
        float((near_far_attention(q, k, v, weights=w, block_size=16) - softmax(q, k, v)).square().mean())
        for w in (fit.weights(), torch.tensor(NEUTRAL))
    ]
    assert errors[0] < errors[1]


def test_rows_that_do_not_count_have_no_influence() -> None:
    q, k, v = qkv(0)
    mask = torch.arange(100) < torch.tensor([[60], [100]])
    target = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None], enable_gqa=True)
    fixed, parts = near_far_parts(q, k, v, key_mask=mask, block_size=16)
    fit, garbled = NearFarFit(), NearFarFit()
    fit.add(target, fixed, parts, mask)
    noise = torch.where(mask[:, None, :, None], target, torch.nan)
    garbled.add(noise, fixed, parts, mask)
    assert torch.equal(fit.weights(), garbled.weights())


def test_a_head_to_which_nothing_is_far_keeps_the_neutral_weights() -> None:
    fit, q, k, v = NearFarFit(), *qkv(0)
    fit.add(softmax(q, k, v), *near_far_parts(q, k, v, block_size=200))
    for found in (fit.weights(), fit.best()):
        torch.testing.assert_close(found, torch.tensor(NEUTRAL, dtype=torch.float64).expand(4, 4))


def test_parts_that_are_left_out_have_no_weight_and_cost_error() -> None:
    fit, q, k, v = NearFarFit(), *qkv(0)
    fit.add(softmax(q, k, v), *near_far_parts(q, k, v, block_size=16))
    some, every = fit.weights(parts=("near", "lln")), fit.weights(parts=WEIGHTS)
    assert torch.equal(some[:, 2:], torch.zeros(4, 2, dtype=torch.float64))
    assert (fit.error(every) <= fit.error(some)).all()


def fit_of(seeds: range) -> NearFarFit:
    fit = NearFarFit()
    for seed in seeds:
        q, k, v = qkv(seed)
        fit.add(softmax(q, k, v), *near_far_parts(q, k, v, block_size=16))
    return fit


def test_the_choice_is_the_best_of_all_on_texts_left_out() -> None:
    """Head 1 by brute force: every text left out in turn, every choice of parts and every ridge."""
    alone, errors = [fit_of(range(seed, seed + 1)) for seed in range(3)], {}
    for parts in CHOICES:
        for ridge in RIDGES:
            squared = 0.0
            for out in range(3):
                rest = fit_of(range(0))
                rest._batches = [fit._batches[0] for seed, fit in enumerate(alone) if seed != out]
                found = rest.weights(ridge, parts)
                squared += float((alone[out].error(found) * alone[out].sums.power.sum(0))[1])
            errors[parts, ridge] = squared
    parts, ridge = min(errors, key=lambda choice: errors[choice])
    every = fit_of(range(3))
    torch.testing.assert_close(every.best()[1], every.weights(ridge, parts)[1])


def test_one_text_tells_nothing_about_the_choice() -> None:
    q, k, v = (t[:1] for t in qkv(0))
    fit = NearFarFit()
    fit.add(softmax(q, k, v), *near_far_parts(q, k, v, block_size=16))
    assert torch.equal(fit.best(), fit.weights())


def test_what_cannot_be_fitted_is_refused_in_words() -> None:
    fit = NearFarFit()
    with pytest.raises(ValueError, match="nothing was added"):
        fit.weights()
    q, k, v = qkv(0)
    fit.add(softmax(q, k, v), *near_far_parts(q, k, v, block_size=16))
    with pytest.raises(ValueError, match="parts are some of near, lln, mean, slope"):
        fit.weights(parts=("neer",))
    with pytest.raises(ValueError, match="ridge must be at least 0"):
        fit.weights(ridge=-1.0)
