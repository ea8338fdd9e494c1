"""`lln bench sums` measures what it says."""

import pytest
import torch

from lln_lab.bench import long_sums


def test_a_small_run_measures_every_method_and_its_truth_is_the_oracle() -> None:
    plan = long_sums.Plan(lengths=(60, 120), decoded=10, dim=4, oracle_length=64)
    result = long_sums.run(plan, lambda _: None)
    found = {(row["backend"], row["inputs"], row["causal"], row["length"]) for row in result["errors"]}
    assert len(found) == len(result["errors"]) == 3 * 2 * 2 * 2
    assert all(error < 1e-12 for kind in result["truth_against_oracle"].values() for error in kind.values())
    assert all(row["output"] < 1e-5 for row in result["errors"] + result["decoding"])


@pytest.mark.parametrize("kind", long_sums.KINDS)
def test_an_error_put_in_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong gradient of one in a thousand is one of a thousandth of its root mean square."""
    right = long_sums.METHODS["plain torch"]
    monkeypatch.setitem(long_sums.METHODS, "plain torch", lambda *x, is_causal: 1.001 * right(*x, is_causal=is_causal))
    rows = long_sums.measure(long_sums.Plan(dim=4), kind, 50, False)
    row = next(row for row in rows if row["backend"] == "plain torch")
    assert row["gradients"]["v"] == pytest.approx(1e-3, rel=1e-2)
    assert row["output"] == pytest.approx(1e-3, rel=0.01) if kind == "constant" else row["output"] > 1e-5
    assert torch.tensor(list(row["largest"].values())).isfinite().all()
