"""Matching on a sample: LLN attention has softmax's entropy, whatever the distribution of queries and keys."""

import itertools
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import lln
from lln.matching import MatchingReport, match_moments, sample_factor
from lln.matching import reached as matching_warnings
from lln.matching.matcher import MomentMatcher
from lln_lab.bench.matching_inputs import INPUTS, Plan, draw, lln_entropy, softmax_entropy, tolerated


def mean_difference(name: str, head_dim: int, length: int, seeds: int = 8, rows: int = 512) -> tuple[float, float]:
    """Mean over seeds of LLN's entropy minus softmax's, and of softmax's, in bits."""
    found = []
    for seed in range(seeds):
        q, k = draw(name, head_dim, length, seed)
        softmax = softmax_entropy(q, k, rows)
        found.append((lln_entropy(q, k, *match_moments(q, k), rows) - softmax, softmax))
    difference, softmax = torch.tensor(found).mean(dim=0).tolist()
    return difference, softmax


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize(("head_dim", "length"), [(16, 1024), (64, 256), (64, 1024)])
def test_the_entropy_is_softmaxs_on_inputs_of_any_distribution(name: str, head_dim: int, length: int) -> None:
    difference, softmax = mean_difference(name, head_dim, length)
    assert abs(difference) <= tolerated(softmax), (difference, softmax)


@pytest.mark.slow
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("head_dim", Plan().head_dims)
@pytest.mark.parametrize("length", Plan().lengths)
def test_the_entropy_is_softmaxs_at_every_length_and_head_size(name: str, head_dim: int, length: int) -> None:
    difference, softmax = mean_difference(name, head_dim, length, rows=2048)
    if (name, head_dim) == ("q = k", 256):  # softmax sees one key alone, and alpha is bounded (lln.ops.moments.search)
        assert softmax < 0.1 and 0 < difference < 1, (difference, softmax)
    else:
        assert abs(difference) <= tolerated(softmax), (difference, softmax)


def test_the_table_alone_is_far_off_where_features_have_heavy_tails() -> None:
    q, k = draw("Student t, 3 degrees", 64, 1024, 0)
    assert lln_entropy(q, k, *match_moments(q, k, method="table"), 256) < 1 < softmax_entropy(q, k, 256) - 5


def inputs(dtype: torch.dtype, samples: int = 3, tokens: int = 700) -> tuple[Tensor, Tensor]:
    """Heads shared by three queries each, of many kinds: some need the large sample, some do not."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(samples, 6, tokens, 24, generator=generator)
    k = torch.randn(samples, 2, tokens, 24, generator=generator)
    q[-1], k[:, 1] = 3 * q[-1], k[:, 1].pow(3) / 4 + 0.5
    return q.to(dtype), k.to(dtype)


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def assert_as_alone(dtype: torch.dtype, one: Any, alone: Any) -> None:
    """Bit for bit in the kernel; in plain torch sums over places without a token may round otherwise."""
    tolerance = 1e-12 if dtype == torch.float64 else 0
    for a, b in zip(one, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("center_keys", [False, True])
def test_padding_and_batch_mates_change_nothing(dtype: torch.dtype, center_keys: bool) -> None:
    q, k = inputs(dtype)
    mask = torch.rand(3, 700, generator=torch.Generator().manual_seed(1)) < torch.tensor([[0.9], [0.1], [0.5]])
    padded = [torch.where(mask[:, None, :, None], x, math.nan) for x in (q, k)]
    together = match_moments(*padded, key_mask=mask, center_keys=center_keys)
    for i in range(3):
        alone = match_moments(q[i : i + 1, :, mask[i]], k[i : i + 1, :, mask[i]], center_keys=center_keys)
        assert_as_alone(dtype, [x[i : i + 1] for x in together], alone)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_sequences_are_as_alone(dtype: torch.dtype) -> None:
    q, k = inputs(dtype, samples=1)
    edges = [0, 1, 1, 60, 700]
    packed = match_moments(q, k, cu_seqlens=torch.tensor(edges))
    for i, (begin, end) in enumerate(itertools.pairwise(edges)):
        if begin < end:
            alone = match_moments(q[:, :, begin:end], k[:, :, begin:end])
            assert_as_alone(dtype, [x[i : i + 1] for x in packed], alone)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_queries_and_keys_may_be_of_different_numbers(dtype: torch.dtype) -> None:
    q, k = inputs(dtype)
    q = q[:, :, :500]
    alpha, beta, report = match_moments(q, k, return_report=True)
    assert alpha.shape == (3, 6, 1, 1) and beta.shape == (3, 2, 1, 1)
    torch.testing.assert_close(report.lln, report.softmax, rtol=0.03, atol=0.15)


def test_equal_tokens_draw_the_same_sample_each_time() -> None:
    q, k = inputs(torch.float32)
    q[:, :, 100:600], k[:, :, 100:600] = q[:, :, :1], k[:, :, :1]
    assert all(torch.equal(a, b) for a, b in zip(match_moments(q, k), match_moments(q.clone(), k.clone()), strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_are_finite_where_there_is_nothing_to_match(dtype: torch.dtype) -> None:
    some = torch.randn(2, 1, 300, 8, dtype=dtype)
    zeros, constant = torch.zeros_like(some), torch.full_like(some, 3.0)
    nothing = torch.zeros(2, 300, dtype=torch.bool)
    outlier = some.clone()
    outlier[0, 0, 5] = 6e4
    huge = 6e4 if dtype == torch.float16 else 1e18
    cases = [(zeros, some, None), (some, zeros, None), (zeros, zeros, None), (constant, constant, None)]
    cases += [(some[:, :, :1], some[:, :, :1], None), (some, some, nothing), (some, some[:, :, :1], None)]
    cases += [(huge / 10 * some, huge / 10 * some, None), (1e-6 * some, 1e-6 * some, None), (outlier, outlier, None)]
    for q, k, mask in cases:
        for value in match_moments(q, k, key_mask=mask):
            assert torch.isfinite(value).all()


def test_a_sample_that_is_not_finite_leaves_its_batch_mates_alone() -> None:
    for dtype in (torch.float32, torch.float64):
        q, k = inputs(dtype)
        expected = match_moments(q, k)
        q[1], k[1] = math.nan, math.nan
        for one, other in zip(match_moments(q, k), expected, strict=True):
            assert torch.equal(one[0], other[0]) and torch.equal(one[2], other[2])


def test_the_factor_is_a_constant_to_gradients() -> None:
    q, k = (x.double().requires_grad_() for x in draw("anisotropic 100 : 1", 16, 40, 0))
    attached = match_moments(q, k, detach=False)
    for one, other in zip(attached, match_moments(q, k), strict=True):
        torch.testing.assert_close(one.detach(), other)
    table = match_moments(q, k, method="table", detach=False)
    for found, from_table in zip(attached, table, strict=True):
        gradients = torch.autograd.grad(found.sum(), (q, k), retain_graph=True)
        of_table = torch.autograd.grad((from_table * (found / from_table).detach()).sum(), (q, k), retain_graph=True)
        for one, other in zip(gradients, of_table, strict=True):
            torch.testing.assert_close(one, other)


def test_the_report_tells_both_entropies() -> None:
    q, k = draw("Student t, 3 degrees", 32, 600, 0)
    for method in ("sample", "table", "instance"):
        alpha, beta, report = match_moments(q, k, method=method, return_report=True)
        assert isinstance(report, MatchingReport)
        assert report.softmax.shape == report.lln.shape == (1, 1)
        assert abs(float(report.softmax) - softmax_entropy(q, k, 600)) < 0.3
        assert abs(float(report.lln) - lln_entropy(q, k, alpha, beta, 600)) < 0.3


def test_the_operators_keep_torchs_contracts() -> None:
    q, k = draw("Gaussian", 8, 40, 0)
    given = (q, k, None, None)
    torch.library.opcheck(torch.ops.lln.match.default, (*given, "sample", "entropy", "head", 0.3, False, "auto"))
    scales = torch.ones(1, k.shape[1], dtype=torch.float64)
    torch.library.opcheck(torch.ops.lln.entropies.default, (*given, scales, scales, 0.3, False, "auto"))


@pytest.fixture
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching_warnings, "_given", set())
    monkeypatch.setattr(matching_warnings, "_calls_of_the_table", 0)


@pytest.mark.usefixtures("unwarned")
def test_the_table_warns_once_of_inputs_it_was_not_made_for() -> None:
    q, k = draw("Student t, 3 degrees", 64, 512, 0)
    with pytest.warns(UserWarning, match="made for Gaussian queries and keys, and these are not"):
        match_moments(q, k, method="table")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            match_moments(q, k, method="table")


@pytest.mark.usefixtures("unwarned")
def test_the_table_looks_now_and_then() -> None:
    good, bad = draw("Gaussian", 16, 128, 0), draw("Student t, 3 degrees", 16, 128, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        match_moments(*good, method="table")
        match_moments(*good, method="table")
        match_moments(*bad, method="table")  # the third call is not looked at
    with pytest.warns(UserWarning, match="made for Gaussian"):
        match_moments(*bad, method="table")


@pytest.mark.usefixtures("unwarned")
def test_there_is_no_warning_where_softmaxs_entropy_is_reached() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in INPUTS:
            match_moments(*draw(name, 32, 300, 0))


@pytest.mark.usefixtures("unwarned")
def test_a_search_that_ends_far_off_warns() -> None:
    reached = torch.tensor([[[5.0, 5.1], [4.0, 2.0]]])
    with pytest.warns(UserWarning, match=r"softmax attention is 5\.77 bits and that of LLN attention 2\.89"):
        matching_warnings.warn_of_search(reached)
    matching_warnings.warn_of_search(reached)


def test_compiled_it_gives_the_same_values() -> None:
    q, k = inputs(torch.float32)
    compiled = torch.compile(lambda q, k: match_moments(q, k), fullgraph=True, backend="aot_eager")
    assert all(torch.equal(a, b) for a, b in zip(compiled(q, k), match_moments(q, k), strict=True))


def test_attention_without_alpha_and_beta_is_matched_on_a_sample() -> None:
    q, k = inputs(torch.float32)
    v = torch.randn(k.shape)
    torch.testing.assert_close(
        lln.lln_attention(q, k, v), lln.lln_attention(q, k, v, *match_moments(q, k, method="sample"))
    )


def test_the_factor_is_what_the_sample_asks_for_beyond_the_table() -> None:
    q, k = inputs(torch.float32)
    found, table = (match_moments(q, k, method=method) for method in ("sample", "table"))
    of_alpha, of_beta = ((a.double() / b.double()).log()[:, :, 0, 0] for a, b in zip(found, table, strict=True))
    factor = sample_factor(q, k)
    torch.testing.assert_close(factor[..., 0].repeat_interleave(3, dim=1), of_alpha, rtol=0, atol=1e-5)
    torch.testing.assert_close(factor[..., 1], of_beta, rtol=0, atol=1e-5)


def test_a_causal_layer_learns_the_factor_from_earlier_batches() -> None:
    q, k = draw("Student t, 3 degrees", 32, 512, 0)
    matcher = MomentMatcher(1, 32, mode="running", length=512)
    fresh = MomentMatcher(1, 32, mode="running", length=512).eval()(q, k)
    assert torch.equal(matcher(q, k)[0], fresh[0])  # a batch has no influence on itself
    for found, wanted in zip(matcher.eval()(q, k)[:2], match_moments(q, k), strict=True):
        torch.testing.assert_close(found, wanted)


def test_checkpoints_without_a_factor_are_read_as_the_table_alone() -> None:
    matcher = MomentMatcher(2, 8, mode="running")
    matcher(*(torch.randn(1, 2, 50, 8) for _ in range(2)))
    state = {name: x for name, x in matcher.state_dict().items() if not name.endswith("log_factor")}
    matcher.load_state_dict(state)
    assert matcher.running is not None and bool((matcher.running.log_factor == 0).all())
