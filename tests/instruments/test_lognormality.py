import math

import torch

from lln.instruments import LLNMatrix, SoftmaxMatrix, lognormality

from .helpers import gaussian


def test_moments_are_those_of_the_logs_of_all_entries() -> None:
    q, k = gaussian(80, 8, 1.2, batch=2, heads=2)
    logs = SoftmaxMatrix(q, k).dense().log().flatten(2)
    found = lognormality(SoftmaxMatrix(q, k))
    off = logs - logs.mean(-1, keepdim=True)
    torch.testing.assert_close(found.mean, logs.mean(-1))
    torch.testing.assert_close(found.variance, logs.var(-1))
    torch.testing.assert_close(found.skewness, off.pow(3).mean(-1) / off.square().mean(-1) ** 1.5)
    torch.testing.assert_close(found.kurtosis, off.pow(4).mean(-1) / off.square().mean(-1) ** 2 - 3)


def test_entries_beyond_the_diagonal_of_a_causal_matrix_do_not_count() -> None:
    q, k = gaussian(30, 4)
    attention = SoftmaxMatrix(q, k, is_causal=True)
    logs = attention.dense()[0, 0][torch.ones(30, 30).tril().bool()].log()
    torch.testing.assert_close(lognormality(attention).variance.squeeze(), logs.var())


def test_proposition_3_1_predicts_mean_and_variance_for_moderate_inputs() -> None:
    q, k = gaussian(1024, 64, 1.0)
    found = lognormality(SoftmaxMatrix(q, k))
    assert abs(found.mean - found.predicted_mean) < 0.02
    assert abs(found.variance / found.predicted_variance - 1) < 0.03
    assert found.ks_distance < 0.01


def test_lln_is_further_from_log_normal_than_softmax_and_skewed_to_the_right() -> None:
    q, k = gaussian(512, 64, 1.0)
    softmax, lln = lognormality(SoftmaxMatrix(q, k)), lognormality(LLNMatrix(q, k, 2.1, 2.1))
    assert lln.ks_distance > 3 * softmax.ks_distance
    assert lln.skewness > 0.3 and abs(softmax.skewness) < 0.15
    assert lln.predicted_mean is None


def test_quantiles_of_a_normal_sample_lie_on_the_line() -> None:
    q, k = gaussian(512, 64, 0.5)
    found = lognormality(SoftmaxMatrix(q, k))
    assert (found.measured_quantiles - found.normal_quantiles).abs().max() < 0.05


def test_uniform_rows_are_the_mean_alone() -> None:
    found = lognormality(torch.full((1, 1, 8, 8), 1 / 8, dtype=torch.float64))
    assert found.mean.item() == -math.log(8) and found.variance.item() == 0
