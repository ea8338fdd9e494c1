"""Every figure of the README's table is that of a result in docs/results, rounded as it stands there."""

import json
from pathlib import Path
from typing import Any

import pytest

from lln_lab.evidence.plan import task
from lln_lab.evidence.standing import AHEAD, BEHIND, in_time_only, standing
from lln_lab.names import name_of

ROOT = Path(__file__).parents[2]


def result(name: str) -> Any:
    return json.loads((ROOT / "docs/results" / f"{name}.json").read_text())


def at(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    return next(row for row in rows if all(row[key] == value for key, value in wanted.items()))


def demo() -> list[str]:
    found = result("demo")
    lln, diag, memory, loss = found["headline"]["figures"]
    held, higher = found["memory"], loss["note"].partition("perplexity ")[2]
    softmax, matrix = f"{held['bytes']['softmax'] / 1e6:.0f} MB", f"{held['matrix_bytes'] / 1e9:.1f} GB"
    return [
        f"LLN {lln['value']} faster, LLN+Diag {diag['value']} faster",
        f"fused softmax {softmax}; a stored softmax matrix {matrix}",
        f"LLN+Diag {memory['value']}",
        f"LLN+Diag {loss['value']} nats: perplexity {higher}",
    ]


def pretraining() -> list[str]:
    rows = {row[0]: row for row in result("fig8")["tables"][0]["rows"]}
    column = result("fig8")["tables"][0]["columns"].index("to softmax")
    return [f"{name} {rows[key][column]}".replace("-", "−") for name, key in (("LLN+Diag", "lln_diag"), ("LLN", "lln"))]


def causal_language_model() -> list[str]:
    found = standing(task("causal_lm"), result("evidence/causal_lm"))
    told = [f"{name_of(each.attention)} −{each.gain.mean:.3f}" for each in found.equal_steps if each.outcome == AHEAD]
    assert len(told) == 2, "LLN+Diag and near-far attention are ahead, LLN is not"
    return told


def equal_time() -> list[str]:
    found = in_time_only(task("image"), result("evidence/image_5600"))
    reached = {each.attention: each for each in found.equal_time}
    assert reached["near_far"].outcome == AHEAD and found.steps == 2000 and not found.lacks
    return [
        f"softmax {found.softmax:.1f} %, LLN+Diag {reached['lln_diag'].score:.1f} %, near-far "
        f"{reached['near_far'].score:.1f} %"
    ]


def encoding() -> list[str]:
    found = result("encode")
    longest, crossover = found["rows"][-1], found["crossover"]["lln_diag"]
    return [
        f"{longest['length']:,} tokens",
        f"{longest['ratio']['lln_diag']:.2f} of the time",
        f"to {crossover} tokens",
    ]


def decoding() -> list[str]:
    rows = result("decode")["rows"]
    kept = {name: at(rows, attention=name, context=100_000)["cache_bytes"] / 1e6 for name in ("lln_diag", "sdpa")}
    return [f"{kept['lln_diag']:.2f} MB instead of {kept['sdpa']:.0f} MB"]


def converted_encoder() -> list[str]:
    diag, swapped = result("convert_minilm"), result("matching_minilm")["swapped"]
    near_far = at(result("near_far_minilm")["rows"], near={"block_size": 64})
    distilled, followed = result("distil_128_960"), result("distil_near_far")
    return [
        f"LLN+Diag {diag['converted']['long']['cosine']:.3f}, near-far attention {near_far['long']['cosine']:.3f}",
        f"{sum(distilled['steps'].values()):,} and {sum(followed['steps'].values()):,} steps",
        f"LLN+Diag {distilled['distilled']['long']['cosine']:.3f} (blocks of 128)",
        f"near-far attention {followed['distilled']['long']['cosine']:.3f}",
        f"only {diag['variants']['matched per sample']['long']['cosine']:.2f} to",
        f"with LLN alone, {swapped['LLN, sample']:.2f}",
    ]


def fine_tuned_encoder() -> list[str]:
    read, more = (
        standing(task("imdb"), result("evidence/imdb")),
        in_time_only(task("imdb"), result("evidence/imdb_1250")),
    )
    of = {each.attention: each for each in read.equal_steps}
    (near_far,) = more.equal_time
    assert of["lln_diag"].outcome == BEHIND and not more.lacks
    return [
        f"softmax {read.softmax:.1f} %, near-far {of['near_far'].score:.1f} % in",
        f"LLN+Diag {of['lln_diag'].score:.1f} %, behind",
        f"on 10,000 reviews near-far {near_far.score:.1f} %, softmax in the same time (7,800 reviews) {more.softmax:.1f} %",
    ]


def converted_language_model() -> list[str]:
    found = result("distil_smollm2_near_far")
    before, after = found["converted"]["long"], found["distilled"]["long"]
    return [
        f"softmax {before['perplexity_before']:.1f}, converted {before['perplexity']:.1f}",
        f"distilled for {sum(found['steps'].values())} steps {after['perplexity']:.1f} (",
    ]


@pytest.mark.parametrize(
    "figures",
    [
        demo,
        pretraining,
        causal_language_model,
        equal_time,
        encoding,
        decoding,
        converted_encoder,
        fine_tuned_encoder,
        converted_language_model,
    ],
)
def test_the_figures_of_the_readme_are_those_of_the_results(figures: Any) -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    for figure in figures():
        assert figure in text, f"the README does not say {figure!r}"
