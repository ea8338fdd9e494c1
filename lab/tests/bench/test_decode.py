"""The benchmark of decoding, at a small size."""

from lln_lab.bench.decode import Decoder, Plan


def test_a_longer_context_takes_no_more_state() -> None:
    plan = Plan(layers=1, heads=2, head_dim=8, piece=64)
    sizes = {a: [Decoder(plan, a, n).cache_bytes() for n in (100, 400)] for a in ("lln", "lln_diag", "sdpa")}
    assert sizes["lln"][0] == sizes["lln"][1] and sizes["lln_diag"][0] == sizes["lln_diag"][1]
    assert sizes["sdpa"][1] == 4 * sizes["sdpa"][0]
