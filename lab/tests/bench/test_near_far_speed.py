"""The speed of near-far attention: everything that is promised is in the file, and the crossover is what it says."""

from typing import Any

from lln_lab.bench import near_far_speed


def test_the_speed_of_near_far_attention_is_measured_against_bare_products_softmax_and_decoding() -> None:
    plan = near_far_speed.Plan(lengths=(64, 256), heads=2, head_dim=8, repeats=1, context=70, tokens=70)
    result = near_far_speed.run(plan, lambda _: None)
    assert [(row["backward"], row["length"]) for row in result["rows"]] == [
        (b, n) for b in (False, True) for n in (64, 256)
    ]
    for row in result["rows"]:
        assert (
            set(near_far_speed.NEAR_FAR) < set(row["milliseconds"])
            and row["ratio_to_bare_products"]["bare products"] == 1
        )
    assert {row["near"] for row in result["crossover"]} == set(near_far_speed.NEAR_FAR)
    assert all(row["length"] == 256 and row["time_per_token_to_a_quarter"] > 0 for row in result["growth"])
    assert result["decoding"]["ratio_to_lln_diag"]["LLN+Diag"] == 1


def test_the_crossover_is_the_length_from_which_on_softmax_is_slower() -> None:
    def row(length: int, softmax: float) -> dict[str, Any]:
        times = {name: 2.0 for name in near_far_speed.NEAR_FAR} | {
            "softmax (SDPA)": softmax,
            "softmax (SDPA), causal": 1.0,
        }
        return {"backward": False, "length": length, "milliseconds": times}

    found = near_far_speed.crossovers([row(64, 3.0), row(128, 1.0), row(256, 2.5), row(512, 9.0)])
    at = {x["near"]: x["faster_from_length"] for x in found if not x["backward"]}
    assert at["blocks of 64"] == 256 and at["blocks of 64, causal"] is None
