"""The independent oracle itself: gradients are the output's slopes, special cases are known, the draws reach everything."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.independent import oracle
from tests.independent.cases import AVAILABLE, DTYPES, LAYOUTS, MASKS, draw
from tests.independent.oracle import Problem
from tests.independent.test_operator import IN_EVERY_RUN

DIFFERENTIABLE = {
    "lln": ("q", "k", "v", "alpha", "beta", "bias"),
    "blocks": ("q", "k", "v"),
    "diag": ("q", "k", "v", "alpha", "beta", "bias", "mix"),
}


def problem(kind: str = "lln", length: int = 7, keys: int | None = None, batch: int = 2, **options: object) -> Problem:
    rng = np.random.default_rng(5)
    keys = length if keys is None else keys
    sequences = len(options["edges"]) - 1 if "edges" in options else batch
    return Problem(
        q=rng.normal(size=(batch, 4, length, 3)), k=rng.normal(size=(batch, 2, keys, 3)),
        v=rng.normal(size=(batch, 2, keys, 2)), alpha=rng.normal(size=(sequences, 4, 3)),
        beta=rng.normal(size=(sequences, 2, 3)), bias=rng.normal(size=(sequences, 4, 3)), lln=kind != "blocks",
        blocks=kind != "lln", block_size=3, scale=0.7, mix=np.array([0.3, 0.5, 0.0, 1.0]), **options,
    )  # fmt: skip


HOLES = np.array([[False, True, True, False, True, True, False], [False] * 5 + [True] * 2])
SETTINGS = {
    "bidirectional": {},
    "causal": {"causal": True},
    "padded": {"counts": HOLES},
    "padded and causal": {"counts": HOLES, "causal": True},
    "packed": {"batch": 1, "edges": [0, 0, 4, 7]},
    "packed and causal": {"batch": 1, "edges": [0, 5, 5, 7], "causal": True},
}


@pytest.mark.parametrize("kind", DIFFERENTIABLE)
@pytest.mark.parametrize("setting", SETTINGS)
def test_gradients_are_the_slopes_of_the_output(kind: str, setting: str) -> None:
    x = problem(kind, **SETTINGS[setting])
    dout = np.random.default_rng(6).normal(size=(*x.q.shape[:3], x.v.shape[3]))
    gradients = oracle.attend(x, dout).values

    def total(**changes: np.ndarray) -> float:
        return float((dout * oracle.attend(replace(x, **changes), dout).values["output"]).sum())

    step = 1e-5
    for name in DIFFERENTIABLE[kind]:
        array = getattr(x, name)
        slopes = np.zeros_like(array)
        for at in np.ndindex(array.shape):
            nudge = np.zeros_like(array)
            nudge[at] = step
            slopes[at] = (total(**{name: array + nudge}) - total(**{name: array - nudge})) / (2 * step)
        np.testing.assert_allclose(gradients[name], slopes, atol=2e-9, err_msg=name)


def test_pieces_change_neither_outputs_nor_gradients() -> None:
    whole = problem("diag", causal=True)
    pieces = replace(whole, pieces=[3, 4])
    dout = np.random.default_rng(6).normal(size=(*whole.q.shape[:3], 2))
    a, b = oracle.attend(whole, dout).values, oracle.attend(pieces, dout).values
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


def test_one_feature_is_softmax_of_the_keys_alone() -> None:
    """With D = 1 the query cancels: P_ij is the softmax of beta k_j, whatever q is."""
    x = problem(length=4, keys=6)
    x = replace(x, q=x.q[..., :1], k=x.k[..., :1], alpha=x.alpha[..., :1], beta=x.beta[..., :1], bias=x.bias[..., :1])
    out = oracle.attend(x, np.zeros((2, 4, 4, 2))).values["output"]
    weights = np.exp(x.beta[:, :, None] * x.k)
    expected = (weights * x.v).sum(axis=2) / weights.sum(axis=2)
    np.testing.assert_allclose(out, np.repeat(expected, 2, axis=1)[:, :, None].repeat(4, axis=2), atol=1e-14)


def test_the_features_are_summed_before_the_row_is_normalised() -> None:
    """By hand: two keys, two features, P_1 = (e^2 e^1 + e^0 e^0) / (e^2 e^1 + e^0 e^0 + e^2 e^0 + e^0 e^3)."""
    one = np.ones((1, 1, 2))
    x = Problem(
        np.array([[[[2.0, 0.0]]]]),
        np.array([[[[1.0, 0.0], [0.0, 3.0]]]]),
        np.array([[[[1.0], [0.0]]]]),
        one,
        one,
        0 * one,
    )
    out = oracle.attend(x, np.zeros((1, 1, 1, 1))).values["output"]
    e = np.exp
    np.testing.assert_allclose(out[0, 0, 0, 0], (e(3) + 1) / (e(3) + 1 + e(2) + e(3)), rtol=1e-15)


def test_a_block_as_long_as_the_sequence_is_softmax_attention() -> None:
    for causal in (False, True):
        x = replace(problem("blocks", causal=causal), block_size=7)
        q, k, v = (torch.from_numpy(a) for a in (x.q, x.k, x.v))
        expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=x.scale, enable_gqa=True)
        out = oracle.attend(x, np.zeros(expected.shape)).values["output"]
        np.testing.assert_allclose(out, expected.numpy(), atol=1e-14)


def test_exponents_of_thousands_are_exact() -> None:
    """Adding a constant to every feature of all keys, or of a query, changes no weight."""
    x = replace(problem(), alpha=np.ones((2, 4, 3)), beta=np.ones((2, 2, 3)))
    dout = np.random.default_rng(6).normal(size=(2, 4, 7, 2))
    a, b = (oracle.attend(p, dout).values for p in (x, replace(x, q=x.q + 2048.0, k=x.k - 4096.0)))
    for name in ("output", "q", "k", "v"):
        np.testing.assert_allclose(a[name], b[name], atol=1e-11)


def test_the_draws_of_every_run_reach_everything() -> None:
    drawn = [draw(seed) for seed in range(IN_EVERY_RUN)]
    assert {(c.function, c.dtype, c.causal) for c in drawn} == {
        (f, d, c) for f in DIFFERENTIABLE for d in DTYPES for c in (False, True)
    }
    assert {(c.function, c.mask, c.causal) for c in drawn} >= {
        (f, m, c) for f in DIFFERENTIABLE for m in MASKS for c in (False, True)
    }
    for place in range(4):
        assert {c.layouts[place] for c in drawn} == set(LAYOUTS)
    assert {c.backend for c in drawn} == {*AVAILABLE, None}
    pieces = [c for c in drawn if c.pieces is not None]
    assert {(c.function, c.mask is None) for c in pieces} == {(f, m) for f in ("lln", "diag") for m in (False, True)}
    packed = [c for c in drawn if c.edges is not None]
    assert {(c.function, c.causal) for c in packed} == {(f, c) for f in DIFFERENTIABLE for c in (False, True)}
    assert sum(len(set(c.edges)) < len(c.edges) for c in packed) > 20, "some sequences are empty"
    assert max(c.sigma for c in drawn) > 50 and min(c.sigma for c in drawn) < 2e-3
    assert max(c.keys for c in drawn) > 190 and max(c.dim for c in drawn) > 60
    assert sum(c.queries != c.keys for c in drawn) > 50
