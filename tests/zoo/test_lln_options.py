"""How alpha and beta of the zoo's LLN members are matched."""

from typing import Any

import pytest
import torch

from lln import lln_diag_attention, match_moments
from lln.zoo import registry


@pytest.mark.parametrize("method", ["sample", "table", "instance"])
def test_the_method_of_matching_is_that_of_match_moments(method: str) -> None:
    q, k, v = (torch.randn(2, 2, 96, 16) * scale for scale in (3, 1, 1))
    attend = registry.attention("lln_diag", method=method, block_size=16)
    alpha, beta = match_moments(q, k, method=method)
    torch.testing.assert_close(attend(q, k, v), lln_diag_attention(q, k, v, alpha, beta, block_size=16))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "sampled"}, "unknown method 'sampled': choose one of 'sample', 'table', 'instance'"),
        ({"method": "sample", "target": "variance"}, "use method='table'"),
        ({"method": "table", "alpha": 1.0, "beta": 1.0}, "leave it out, or leave alpha and beta out"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.options("lln", **options)
