"""What becomes of results on their way to the page, without a browser."""

import html
import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest
import typer
from typer.testing import CliRunner

from lab.tests.report.samples import HOSTILE, LENGTH, run, write_sample
from lab.tests.report.samples import experiment as sample
from lln_lab.cli.report import report
from lln_lab.report import NoResults, write
from lln_lab.report.blocks import Table
from lln_lab.report.codes import decode, encode
from lln_lab.report.collect import collect
from lln_lab.report.maps import BYTES, Maps, coarser, read_map
from lln_lab.report.numbers import column, natural, number, text
from lln_lab.report.page import embedded_json, render
from lln_lab.report.plots import FEWEST, POINTS, Axis, Line, Plot
from lln_lab.report.readers import experiment, read

RESULTS = Path(__file__).parents[3] / "docs/results"


def page_of(folder: Path, data: dict[str, Any] | None = None) -> str:
    write_sample(folder, data)
    return write([folder], folder / "report.html").read_text(encoding="utf-8")


def drawings_of(page: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="drawings">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def section_of(folder: Path, data: dict[str, Any]) -> Any:
    write_sample(folder, data)
    return read(collect([folder]).results[0])


# Finding results


def test_results_are_found_below_folders_and_each_once(tmp_path: Path) -> None:
    file = write_sample(tmp_path / "a/b")
    write_sample(tmp_path / "fig10")
    write_sample(tmp_path / "fig9")
    found = collect([tmp_path, file, tmp_path / "a"])
    assert [result.name for result in found.results] == ["a/b/fig8.json", "fig9/fig8.json", "fig10/fig8.json"]
    assert found.notices == []


def test_results_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder in ("a/x", "b/x", "b/y"):
        write_sample(tmp_path / folder)
    (tmp_path / "a/x/other.json").write_text("{}")
    (tmp_path / "b/y/other.json").write_text("{}")
    found = collect([tmp_path / "a/x", tmp_path / "b/x", tmp_path / "b/y/fig8.json", tmp_path / "b/y"])
    assert [result.name for result in found.results] == ["a/x/fig8.json", "b/x/fig8.json", "y/fig8.json"]
    assert [notice.split()[0] for notice in found.notices] == ["x/other.json", "y/other.json"]
    with pytest.warns(UserWarning, match="left out"):
        page = write([tmp_path / "a/x", tmp_path / "b/x"], tmp_path / "report.html").read_text(encoding="utf-8")
    for name in ("a/x", "b/x"):
        assert f"Masked-language-model pre-training ({name}/fig8.json)" in page


def test_a_folder_above_or_the_one_at_work_has_a_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("a", "b"):
        write_sample(tmp_path / folder)
    monkeypatch.chdir(tmp_path / "a")
    assert [result.name for result in collect([".", "../b"]).results] == ["a/fig8.json", "b/fig8.json"]


def test_checkpoints_and_configurations_are_no_results(tmp_path: Path) -> None:
    write_sample(tmp_path)
    for name in ("config.json", "tokenizer.json", "checkpoint-100/metrics.json", "checkpoint-100/trainer_state.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    found = collect([tmp_path])
    assert len(found.results) == 1 and found.notices == []


def test_single_runs_stand_alone_only_until_their_experiment_is_written(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_sample(tmp_path / f"mlm_lln_seed{seed}", run("LLN", 5.0, seed), "result.json")
    titles = ["A single run, mlm, LLN, seed 0", "A single run, mlm, LLN, seed 1"]
    sections = list(map(read, collect([tmp_path]).results))
    assert [section.title for section in sections] == titles
    assert [block.title for block in sections[0].blocks] == ["Training", "Concentration of attention", "Every run"]
    write_sample(tmp_path)
    write_sample(tmp_path / "elsewhere", run("LLN", 5.0) | {"runs": []})
    assert [result.name for result in collect([tmp_path]).results] == ["elsewhere/fig8.json", "fig8.json"]


@pytest.mark.parametrize("content", ["{}", "[1, 2]", "null", '{"provenance": 3}', "{broken", ""])
def test_other_json_is_left_out_with_a_notice_on_the_page_too(tmp_path: Path, content: str) -> None:
    write_sample(tmp_path)
    (tmp_path / "other.json").write_text(content)
    with pytest.warns(UserWarning, match="other.json was left out"):
        page = write([tmp_path], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "other.json was left out" in page


def test_no_result_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoResults, match="no results found"):
        write([tmp_path], tmp_path / "report.html")
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        write([tmp_path / "nowhere"], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


# The page as a whole


def test_the_page_says_what_was_run(tmp_path: Path) -> None:
    page = html.unescape(page_of(tmp_path))
    provenance = json.loads((tmp_path / "fig8.json").read_text())["provenance"]
    for expected in (
        provenance["command"], provenance["time"], provenance["versions"]["torch"], provenance["machine"]["processor"],
        "wikitext", "36,718", "ab" * 32, "train.txt", "learning rate",
    ):  # fmt: skip
        assert expected in page
    if provenance["commit"]:
        assert provenance["commit"] in page


def test_the_page_is_small_and_loads_nothing(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert len(page.encode()) < 200_000
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|WebSocket", page)
    assert "default-src 'none'" in page


def test_every_result_of_the_repository_becomes_a_section_without_a_notice() -> None:
    found = collect([RESULTS])
    assert len(found.results) >= 19 and found.notices == []
    for section in map(read, found.results):
        assert section.notices == [], section.name
        assert section.blocks and section.facts, section.name


def test_the_repository_s_page_opens_at_once(tmp_path: Path) -> None:
    """Some 40 kB a result: a page of many results stays as small as its results are."""
    results = len(collect([RESULTS]).results)
    assert write([RESULTS], tmp_path / "report.html").stat().st_size < 200_000 + 40_000 * results


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    write_sample(tmp_path)
    pages = [write([tmp_path], tmp_path / f"{name}.html").read_bytes() for name in "ab"]
    assert pages[0] == pages[1]


# Text from elsewhere


def hostile() -> dict[str, Any]:
    """Every text of a result, hostile."""
    data = sample()
    data["title"] = HOSTILE
    data["settings"] = {HOSTILE: HOSTILE}
    data["data"] = {"name": HOSTILE, "files": {HOSTILE: HOSTILE}}
    data["tables"] = [{"title": HOSTILE, "note": HOSTILE, "columns": [HOSTILE], "rows": [[HOSTILE]], "paper": None}]
    data["verdicts"] = [{"claim": HOSTILE, "outcome": HOSTILE, "numbers": HOSTILE}]
    data["runs"] = [run(HOSTILE, 5.0, task=HOSTILE) | {"evaluation": {HOSTILE: 1.0}}]
    data["maps"] = [{"label": HOSTILE, "layer": HOSTILE, "head": HOSTILE, "text": HOSTILE, "matrix": [[1.0]]}]
    return data


def test_no_text_of_a_result_becomes_markup(tmp_path: Path) -> None:
    page = page_of(tmp_path, hostile())
    own = page_of(tmp_path)
    assert page.count("<script") == own.count("<script") and page.count("</script") == own.count("</script")
    assert "<b>&amp;" not in page
    assert html.escape(HOSTILE, quote=False).replace("'", "&#39;") in page
    assert drawings_of(page)[0]["lines"][0]["at"]["attention"] == HOSTILE


def test_embedded_json_survives_a_script_element() -> None:
    data = {"a": "</script><!--<script>\u2028\u2029é"}
    packed = embedded_json(data)
    assert "<" not in packed and "\u2028" not in packed and json.loads(packed) == data
    with pytest.raises(ValueError):
        embedded_json([math.nan])


# Results that are not complete


@pytest.mark.parametrize("key", ["preset", "settings", "data", "runs", "tables", "verdicts", "timing", "maps"])
@pytest.mark.parametrize("empty", ["absent", None, [], {}])
def test_every_part_of_an_experiment_may_be_missing(tmp_path: Path, key: str, empty: Any) -> None:
    data = sample()
    del data[key]
    section = section_of(tmp_path, data if empty == "absent" else data | {key: empty})
    whole = section_of(tmp_path, sample())
    assert section.notices == []
    assert len(section.blocks) == len(whole.blocks) - {"runs": 3, "tables": 1, "timing": 1, "maps": 1}.get(key, 0)


def test_only_a_name_is_enough(tmp_path: Path) -> None:
    assert "Nothing else" in page_of(tmp_path, {"experiment": "x", "title": "Nothing else"})


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({"tables": [3]}, "tables could not be read"),
        ({"timing": {"series": []}}, "timing could not be read ('lengths' is missing)"),
        ({"maps": [{"matrix": [[1.0], [0.5, 0.5]]}]}, "attention maps could not be read"),
        ({"maps": [{"matrix": []}]}, "attention maps could not be read"),
        ({"verdicts": ["yes"]}, "verdicts could not be read"),
    ],
)
def test_a_broken_part_is_a_notice_and_the_rest_is_there(tmp_path: Path, broken: dict[str, Any], expected: str) -> None:
    section = section_of(tmp_path, sample() | broken)
    assert len(section.notices) == 1 and expected in section.notices[0]
    assert any(isinstance(block, Plot) and block.title == "Training" for block in section.blocks)
    assert html.escape(section.notices[0], quote=False).replace("'", "&#39;") in page_of(tmp_path, sample() | broken)


def test_a_picture_that_is_none_is_a_notice(tmp_path: Path) -> None:
    (tmp_path / "fig8.png").write_bytes(b"not a picture")
    assert "fig8.png is not a picture" in section_of(tmp_path, sample()).notices[0]


def test_the_picture_beside_a_result_is_embedded(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (4, 4), "red").save(tmp_path / "fig8.png")
    assert 'src="data:image/webp;base64,' in page_of(tmp_path)


def test_unknown_results_are_shown_as_tables(tmp_path: Path) -> None:
    data = {"sizes": {"heads": 4}, "rows": [{"length": 8, "time": {"ours": 0.5}}, {"length": 16}], "note": "hello"}
    section = section_of(tmp_path, data)
    assert [(block.title, block.columns, block.rows) for block in section.blocks] == [
        ("Values", ["", "value"], [["note", "hello"]]),
        ("Sizes", ["", "value"], [["heads", 4]]),
        ("Rows", ["length", "time: ours"], [[8, 0.5], [16, None]]),
    ]


def page_with(folder: Path, data: dict[str, Any], value: str) -> str:
    """The page of a result in which every text "?" is `value`, as JSON has it or as Python writes it."""
    path = write_sample(folder, data)
    path.write_text(path.read_text().replace('"?"', value))
    return write([folder], folder / "report.html").read_text(encoding="utf-8")


NOT_FINITE = pytest.mark.parametrize(
    ("value", "shown"), [("NaN", "NaN"), ("Infinity", "∞"), ("-Infinity", "−∞"), ("null", "–")]
)


@NOT_FINITE
def test_a_loss_that_is_not_a_number_is_a_gap_in_the_line_and_told_in_the_table(
    tmp_path: Path, value: str, shown: str
) -> None:
    data = sample()
    data["runs"], data["tables"] = data["runs"][:1], []
    for row in data["runs"][0]["history"][20:]:
        row["loss"] = "?"
    data["runs"][0]["evaluation"] = {"loss": "?"}
    page = page_with(tmp_path, data, value)
    line = drawings_of(page)[0]["lines"][0]
    assert line["y"][19] == pytest.approx(6.0 / 20**0.25, rel=1e-5) and line["y"][20:] == [None] * 20
    assert f'<td class="number">{shown}</td>' in page and re.search(r"<th[^>]*>loss</th>", page)


def hollow(value: Any) -> Any:
    """Every number with a fraction, at any depth, as the text "?"."""
    if isinstance(value, dict):
        return {key: hollow(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hollow(item) for item in value]
    return "?" if isinstance(value, float) else value


@NOT_FINITE
def test_an_experiment_in_which_no_number_is_finite_is_read_without_a_notice(
    tmp_path: Path, value: str, shown: str
) -> None:
    page = page_with(tmp_path, hollow(sample()), value)
    assert "could not be read" not in page and "Every run" in page
    assert not any(line["y"] for drawing in drawings_of(page) for line in drawing.get("lines", ()))


@pytest.mark.parametrize("value", ["NaN", "null"])
@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.glob("*.json")))
def test_every_result_of_the_repository_is_read_without_its_finite_numbers(
    tmp_path: Path, name: str, value: str
) -> None:
    data = hollow(json.loads((RESULTS / name).read_text()))
    (tmp_path / name).write_text(json.dumps(data).replace('"?"', value))
    section = read(collect([tmp_path]).results[0])
    assert section.notices == []
    render([section])


# Experiments


def test_lines_carry_the_numbers_of_the_history(tmp_path: Path) -> None:
    data = sample()
    training, layers, timing = (one for one in drawings_of(page_of(tmp_path, data)) if "lines" in one)
    loss = [line for line in training["lines"] if line["at"]["measure"] == "loss"]
    assert [(line["at"]["attention"], line["name"]) for line in loss if line["dashed"]] == [
        ("softmax", "seed 0, validation"), ("softmax", "seed 1, validation"),
        ("LLN", "seed 0, validation"), ("LLN", "seed 1, validation"), ("LLN+Diag", "validation"),
    ]  # fmt: skip
    history = data["runs"][2]["history"]
    lln = next(line for line in loss if line["at"]["attention"] == "LLN")
    assert lln["x"] == [row["step"] for row in history]
    assert lln["y"] == pytest.approx([row["loss"] for row in history], rel=1e-5)
    assert len(layers["lines"]) == 5 * 3 * 3
    assert [option["label"] for option in layers["selectors"][0]["options"]] == [
        "temperature", "entropy (bits)", "spectral gap",
    ]  # fmt: skip
    assert [line["y"] for line in timing["lines"]] == [[0.001, 0.016, 0.25], [0.002, 0.008, 0.032], [1e6, 16e6, 256e6]]


def test_the_loss_is_also_shown_against_softmax_of_the_same_seed() -> None:
    runs = [
        run("softmax", 5.0),
        run("softmax", 6.0, seed=1),
        run("LLN", 5.5),
        run("LLN", 5.9, seed=1),
        run("LLN", 9.0, seed=2),
    ]
    training, validation = experiment.loss_to_softmax(list(experiment._runs({"runs": runs})))
    assert training.at == {"measure": "loss to softmax's", "attention": "LLN", "task": "mlm"}
    assert list(training.x) == list(range(1, 41)) and list(validation.x) == [10, 20, 30, 40]
    assert training.y[0] == pytest.approx((0.5 - 0.1) / 2)  # the third seed has no softmax beside it
    assert validation.dashed and validation.y[-1] == pytest.approx((0.5 - 0.1) / 2 / 40**0.25)
    assert experiment.loss_to_softmax(list(experiment._runs({"runs": runs[2:]}))) == []
    del runs[0]["history"][4]  # what is logged at step 6 is now a mean over two steps, and has no like
    training, _ = experiment.loss_to_softmax(list(experiment._runs({"runs": [runs[0], runs[2]]})))
    assert list(training.x) == [1, 2, 3, 4, *range(7, 41)]


def test_runs_of_one_name_stay_apart() -> None:
    data = {"runs": [run("LLN", 5.0), run("LLN", 5.1), run("LLN", 5.2, task="qnli"), {"history": []}, {}]}
    names = [one.name for one in experiment._runs(data)]
    assert len(set(names)) == 5 and names[0] == "LLN, mlm, seed 0"


def test_tables_stand_beside_the_paper_s(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert "Measured here" in page and "The paper: Table 0" in page
    for cell in ("2.403", "2.363", "1.90", "1.95"):
        assert f'<td class="number">{cell}</td>' in page


def test_verdicts_are_counted_and_told_apart_without_colour(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    for style, symbol, outcome in (
        ("yes", "✓", "holds"),
        ("no", "✕", "does not hold"),
        ("unclear", "?", "inconclusive"),
    ):
        assert f'<span class="badge {style}"><span aria-hidden="true">{symbol}</span> {outcome}</span>' in page


def test_forty_lines_look_different() -> None:
    lines = [Line({"run": f"run {i}"}, [0, 1], [0, i]) for i in range(37)] + [Line({"run": "LLN"}, [0], [1])]
    styles = Plot("", Axis("x"), Axis("y"), "run", lines).as_data()["styles"]["run"]
    assert len({(style["colour"], style["marker"]) for style in styles.values()}) == 38
    assert styles["LLN"] == {"colour": 1, "marker": 1, "tint": 0.0}


def test_long_lines_are_thinned_but_keep_their_ends_and_spikes() -> None:
    length = 4 * POINTS
    y = [math.sin(i / 1000) for i in range(length)]
    y[54_321], y[77_777] = 9.0, -9.0
    many = [Line({"run": str(i)}, range(length), y) for i in range(3)]
    plot = Plot("", Axis("x"), Axis("y"), "run", many).as_data()
    for line in plot["lines"]:
        assert FEWEST < len(line["x"]) <= POINTS // 3
        assert line["x"][0] == 0 and line["x"][-1] == length - 1 and {54_321, 77_777} <= set(line["x"])
        assert all(value == pytest.approx(y[at], rel=1e-5) for at, value in zip(line["x"], line["y"], strict=True))
    assert "thinned" in plot["note"]


# Benchmarks


def test_benchmarks_keep_their_numbers(tmp_path: Path) -> None:
    kernels = json.loads((RESULTS / "kernels.json").read_text())
    plot = section_of(tmp_path, kernels).blocks[0]
    wanted = {"pass": "forward and backward", "threads": "2", "attention": "native"}
    (line,) = (line for line in plot.lines if line.at == wanted)
    cells = [cell for cell in kernels["timings"] if cell["threads"] == 2 and cell["backward"]]
    assert list(line.x) == [cell["length"] for cell in cells]
    assert list(line.y) == [cell["methods"]["native"]["milliseconds"] / 1e3 for cell in cells]

    zoo = json.loads((RESULTS / "zoo.json").read_text())
    plot, table = section_of(tmp_path, zoo).blocks
    assert len(plot.lines) == 4 * len(zoo["plan"]["members"])
    diag = next(row for row in zoo["rows"] if (row["member"], row["length"]) == ("lln_diag", 1024))
    ours, paper = (diag["step_seconds_ratio"], diag["peak_bytes_ratio"]), diag["paper"]
    assert ["lln_diag", "small", 1024, ours[0], paper["time"], ours[1], paper["memory"]] in table.rows

    rows = [{"length": n, "seconds": {"sdpa": n / 1e3, "lln": n / 2e3}, "ratio": {"lln": 0.5}} for n in (512, 1024)]
    section = section_of(tmp_path, {"rows": rows})
    assert section.title == "Encoding long documents" and list(section.blocks[0].lines[1].y) == [0.256, 0.512]


# Attention maps


def test_maps_are_exact_until_they_are_too_many() -> None:
    matrix = numpy.random.default_rng(0).dirichlet(numpy.ones(LENGTH), LENGTH)
    data = Maps("", [read_map({"matrix": matrix.tolist(), "text": "one two"})]).as_data()
    numpy.testing.assert_allclose(decode(data["maps"][0]["values"], LENGTH, LENGTH), matrix, rtol=4e-4)
    assert data["cell"] == 1 and not data["note"]
    assert data["tokens"] is None  # two words are not twelve keys

    large = read_map({"matrix": numpy.full((600, 600), 1 / 600).tolist()})
    data = Maps("", [large] * 8).as_data()
    assert data["cell"] == 2 and "2 × 2" in data["note"]
    assert sum(len(one["values"]) for one in data["maps"]) <= BYTES


def test_codes_keep_weights_and_what_is_none() -> None:
    weights = numpy.array([[1.0, 0.25, 1e-9, 0.0, math.nan]])
    numpy.testing.assert_allclose(decode(encode(weights), 1, 5), weights, rtol=4e-4)
    with pytest.raises(ValueError, match="has 5 values"):
        decode(encode(weights), 5, 5)


@pytest.mark.parametrize("cell", [2, 3, 5, 20])
def test_rows_of_coarser_maps_still_sum_to_one(cell: int) -> None:
    matrix = numpy.random.default_rng(0).dirichlet(numpy.ones(13), 11).astype("f4")
    coarse = coarser(matrix, cell)
    assert coarse.shape == (-(-11 // cell), -(-13 // cell))
    numpy.testing.assert_allclose(coarse.sum(1), 1, rtol=1e-6)
    numpy.testing.assert_allclose(coarse[0, 0], matrix[:cell, :cell].sum(1).mean(), rtol=1e-6)


# Numbers


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (12_345, "12,345"), (0.0, "0"), (5.95712, "5.957"), (0.5, "0.5"), (123_456.7, "123,457"), (1.2346e-7, "1.235e-07"),
        (math.nan, "NaN"), (-math.inf, "−∞"), (None, "–"), (True, "yes"), ([1, 0.25], "1, 0.25"), ([], "–"), (-0.25, "-0.25"),
    ],
)  # fmt: skip
def test_numbers_as_text(value: Any, shown: str) -> None:
    assert text(value) == shown
    if isinstance(value, float):
        assert number(value) == shown


def test_a_column_has_equal_decimals_where_sizes_allow() -> None:
    assert column([0.95, 16.7, None]) == ["0.95", "16.70", "–"]
    assert column([5.9571, 6.0]) == ["5.957", "6.000"]
    assert column([1e-9, 2.0]) == ["1.000e-09", "2"]
    assert column(["softmax", 3]) == ["softmax", "3"]


def test_rows_may_be_ragged_or_absent() -> None:
    from lln_lab.report.page import _table

    assert _table(Table(["a"], [[1, 2.5], []]))["rows"] == [[("1", False), ("2.5", True)], [("–", False), ("–", True)]]
    assert _table(Table([], []))["rows"] == []


def test_natural_order() -> None:
    assert sorted(["layer 10", "layer 2", "a", ""], key=natural) == ["", "a", "layer 2", "layer 10"]


# The command

app = typer.Typer()
app.command()(report)


def test_the_command_writes_the_page_and_names_what_it_left_out(tmp_path: Path) -> None:
    write_sample(tmp_path)
    (tmp_path / "other.json").write_text("{}")
    out = tmp_path / "deep/page.html"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = CliRunner().invoke(app, [str(tmp_path), "-o", str(out), "--title", "Mine & <yours>"])
    assert result.exit_code == 0, result.output
    assert "other.json was left out" in result.output and "written" in result.output
    assert "<h1>Mine &amp; &lt;yours&gt;</h1>" in out.read_text(encoding="utf-8")


def test_the_command_fails_in_words(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path)])
    assert result.exit_code == 1 and "no results found" in " ".join(result.output.split())
    result = CliRunner().invoke(app, [str(tmp_path / "nowhere")], env={"COLUMNS": "400"})
    assert result.exit_code == 2 and "nowhere does not exist" in result.output
