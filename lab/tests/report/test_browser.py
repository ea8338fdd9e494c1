"""The page as a reader meets it: headless Chromium opens it from disk, and works every control."""

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.tests.report.browser import Opened, executable, opened
from lab.tests.report.samples import HEADS, HOSTILE, LAYERS, LENGTH, experiment, run, write_sample
from lab.tests.report.test_report import RESULTS, hostile
from lln_lab.report import write

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the browser test needs playwright: pip install playwright"
)
pytestmark = pytest.mark.skipif(
    executable() is None, reason="no browser: install chromium (or set LLN_CHROMIUM) to test the page"
)
UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=executable(), args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def sample_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    write_sample(folder)
    return write([folder], folder / "report.html")


@pytest.fixture(params=[1280, 390], ids=["desktop", "phone"])
def width(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def shown(browser: Any, sample_page: Path, width: int, theme: str) -> Iterator[Opened]:
    with opened(browser, sample_page, width, theme) as found:
        yield found


def figure(found: Opened, title: str) -> Any:
    return found.page.locator("figure", has=found.page.locator("h4", has_text=re.compile(f"^{title}$")))


def lines(plot: Any) -> list[str]:
    return plot.locator("path.line[data-label]").evaluate_all("all => all.map((one) => one.dataset.label)")


def value(shown: str) -> float:
    """A number as the page shows it, with its unit."""
    number, _, unit = shown.replace(",", "").partition(" ")
    return float(number) * UNITS[unit]


def reading(plot: Any) -> dict[str, float]:
    """{label and details: value} of what the pointer or the keys read."""
    rows = plot.locator(".reading li").evaluate_all(
        "all => all.map((row) => [row.querySelector('span').textContent, row.querySelector('b').textContent])"
    )
    return {label: value(shown) for label, shown in rows}


def close(found: float, expected: float) -> bool:
    """Equal to the four digits that are shown."""
    return math.isclose(found, expected, rel_tol=5.1e-4)


def test_every_control_can_be_worked_without_an_error(shown: Opened) -> None:
    page = shown.page
    for details in page.locator("details > summary").all():
        details.click()
        shown.check()
    worked = 0
    for select in page.locator("select").all():
        for at in range(select.locator("option").count()):
            select.select_option(index=at)
            shown.check()
            worked += 1
    for box in page.get_by_role("checkbox").all():
        if box.is_enabled():
            box.click()
            shown.check()
            box.click()
            worked += 1
    for button in page.get_by_role("button").all():
        button.click()
        shown.check()
        button.click()
        worked += 1
    assert worked > 30
    assert page.locator("figure").count() == 4 and page.locator("table").count() >= 5
    assert page.locator("select, input").evaluate_all("all => all.every((one) => one.labels.length === 1)")


def test_the_theme_follows_the_system_and_the_toggle(shown: Opened, theme: str) -> None:
    page = shown.page

    def background() -> float:
        red, *_ = re.findall(r"[\d.]+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
        return float(red)

    def corner() -> list[int]:
        """The lowest colour of the maps, read from a copy, as Chromium complains of canvases that are read again."""
        return page.evaluate("""() => {
            const copy = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
            copy.drawImage(document.querySelector(".key canvas"), 0, 0);
            return [...copy.getImageData(0, 0, 1, 1).data];
        }""")

    toggle, dark = page.get_by_role("button", name="Dark"), theme == "dark"
    for expected in (dark, not dark, dark):
        assert (background() < 60) == expected and (corner()[0] < 60) == expected
        assert toggle.get_attribute("aria-pressed") == str(expected).lower()
        toggle.click()
    page.reload()
    shown.requests.pop()
    assert (background() < 60) == (not dark)  # the choice is kept


def test_the_system_may_change_its_mind(browser: Any, sample_page: Path) -> None:
    with opened(browser, sample_page) as found:
        found.page.emulate_media(color_scheme="dark")
        found.page.wait_for_selector("#theme[aria-pressed=true]")


def test_training_curves(shown: Opened) -> None:
    data = experiment()
    plot = figure(shown, "Training")
    assert sorted(lines(plot)) == sorted(2 * ["softmax", "softmax", "LLN", "LLN", "LLN+Diag"])
    assert plot.locator("path.line.dashed[data-label]").count() == 5
    plot.get_by_role("button", name="softmax").click()
    assert "softmax" not in lines(plot) and len(lines(plot)) == 6
    plot.get_by_role("button", name="softmax").click()

    plot.locator(".area").press("End")
    assert plot.locator(".reading p").first.text_content() == "step 40"
    found, last = reading(plot), data["runs"][3]["history"][-1]
    assert len(found) == 10
    assert close(found["LLN seed 1"], last["loss"]) and close(found["LLN seed 1, validation"], last["eval_loss"])
    plot.locator(".area").press("ArrowLeft")
    assert plot.locator(".reading p").first.text_content() == "step 39"
    assert close(reading(plot)["LLN+Diag"], data["runs"][4]["history"][38]["loss"])
    plot.locator(".area").press("Escape")
    assert plot.locator(".reading").is_hidden()

    plot.get_by_label("Measure").select_option("gradient norm")
    assert sorted(lines(plot)) == sorted(["softmax", "softmax", "LLN", "LLN", "LLN+Diag"])
    assert plot.get_by_label("logarithmic y").is_checked()
    plot.locator(".area").press("Home")
    assert set(reading(plot).values()) == {2.0}


def test_the_pointer_reads_the_nearest_values(shown: Opened) -> None:
    plot = figure(shown, "Time and memory against length")
    area = plot.locator(".area")
    area.scroll_into_view_if_needed()
    middle = plot.locator("text.tick-x", has_text="1,024").bounding_box()
    area.hover(position={"x": middle["x"] + middle["width"] / 2 - area.bounding_box()["x"] + 3, "y": 100})
    assert reading(plot) == {"softmax": 0.016, "LLN": 0.008}
    box, frame = plot.locator(".reading").bounding_box(), area.bounding_box()
    assert box["x"] >= frame["x"] - 1 and box["x"] + box["width"] <= frame["x"] + frame["width"] + 1


def test_time_and_memory(shown: Opened) -> None:
    plot = figure(shown, "Time and memory against length")
    assert lines(plot) == ["softmax", "LLN"]
    plot.get_by_label("Measure").select_option("memory")
    assert lines(plot) == ["softmax"]
    plot.locator(".area").press("End")
    assert reading(plot) == {"softmax": 256e6}


@pytest.mark.parametrize("log", [False, True], ids=["linear", "log"])
def test_lines_are_drawn_where_their_values_are(shown: Opened, log: bool) -> None:
    """The path's pixels, read back with the axis' ticks, are the data."""
    plot = figure(shown, "Training")
    plot.get_by_label("logarithmic y").set_checked(log)
    to, back = (math.log10, lambda y: 10**y) if log else (float, float)

    def axis(name: str, along: str, to: Any) -> Any:
        ticks = plot.locator(f"text.tick-{name}").evaluate_all(
            f"all => all.map((one) => [one.textContent, Number(one.getAttribute('{along}'))])"
        )
        (low, start), (high, end) = ((to(value(text)), at) for text, at in (ticks[0], ticks[-1]))
        return lambda at: low + (at - start) / (end - start) * (high - low)

    x, y = axis("x", "x", float), axis("y", "y", to)
    history = experiment()["runs"][0]["history"]
    path = plot.locator("path.line[data-label=softmax]").first.get_attribute("d")
    points = [tuple(map(float, point.split(","))) for point in re.split("[ML]", path)[1:]]
    assert len(points) == len(history)
    for (across, down), row in zip(points, history, strict=True):
        assert x(across) == pytest.approx(row["step"], abs=0.02 * 40)
        assert back(y(down + 4)) == pytest.approx(row["loss"], rel=0.005)  # a tick's text stands 4 pixels low


def test_concentration_of_the_layers_of_a_run_and_of_the_runs_at_a_layer(shown: Opened) -> None:
    data = experiment()
    plot = figure(shown, "Concentration of attention")
    names = {"temperature": "temperature", "entropy (bits)": "entropy", "spectral gap": "gap"}
    for measure, key in names.items():
        plot.get_by_label("Measure").select_option(measure)
        plot.get_by_label("Show").select_option("LLN+Diag")
        assert lines(plot) == [f"layer {layer}" for layer in range(LAYERS)]
        plot.locator(".area").press("End")
        for layer in range(LAYERS):
            assert close(reading(plot)[f"layer {layer}"], data["runs"][4]["history"][-1][f"attention/{layer}/{key}"])
        plot.get_by_label("Show").select_option("layer 1")
        assert lines(plot) == ["softmax", "softmax", "LLN", "LLN", "LLN+Diag"]


def test_the_table_of_values_is_the_data(shown: Opened) -> None:
    data = experiment()
    plot = figure(shown, "Training")
    plot.get_by_label("Measure").select_option("learning rate")
    plot.get_by_label("Measure").select_option("loss")
    plot.get_by_text("Values as a table").click()
    heads = plot.locator(".values thead th").all_text_contents()
    rows = plot.locator(".values tbody tr").evaluate_all(
        "all => all.map((r) => [...r.cells].map((c) => c.textContent))"
    )
    at = heads.index("LLN, seed 1")
    for row, expected in zip(rows, data["runs"][3]["history"], strict=True):
        assert int(row[0]) == expected["step"] and close(value(row[at]), expected["loss"])
        assert (row[at + 1] == "–") == ("eval_loss" not in expected)


def test_attention_maps_of_every_layer_and_head(shown: Opened) -> None:
    maps = {(one["label"], one["layer"], one["head"]): one["matrix"] for one in experiment()["maps"]}
    block = figure(shown, "Attention maps")
    assert block.locator(".map-title").all_text_contents() == ["softmax", "LLN", "LLN / softmax"]
    assert block.locator(".facts").all_text_contents()[:2] == ["rows sum to 1", "rows sum to 1"]
    assert block.locator(".queries").first.locator("span").all_text_contents()[0] == "word0"
    left = block.locator(".panel canvas").first
    assert left.evaluate("one => [one.width, one.height]") == [LENGTH, LENGTH]
    pictures = set()
    for layer in range(LAYERS):
        for head in range(HEADS):
            block.get_by_label("Layer", exact=True).select_option(str(layer))
            block.get_by_label("Head", exact=True).select_option(str(head))
            pictures.add(left.evaluate("one => one.toDataURL()"))
            for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
                left.press(key)  # the first press begins at the first cell
            told = block.locator(".told").text_content()
            found = re.fullmatch(
                r"query 1 “word1” to key 3 “word3”: softmax (\S+), LLN (\S+), LLN / softmax (\S+)", told
            )
            assert found, told
            assert close(float(found[1]), maps["softmax", layer, head][1][3])
            assert close(float(found[2]), maps["LLN", layer, head][1][3])
            ratio = maps["LLN", layer, head][1][3] / maps["softmax", layer, head][1][3]
            assert float(found[3]) == pytest.approx(ratio, rel=2e-3)
    assert len(pictures) == LAYERS * HEADS
    largest = max(max(map(max, maps[name, LAYERS - 1, HEADS - 1])) for name in ("softmax", "LLN"))
    assert float(block.locator(".key").first.locator("span").last.text_content()) == pytest.approx(largest, rel=5e-3)
    before = left.evaluate("one => one.toDataURL()")
    block.get_by_label("logarithmic colours").click()
    assert left.evaluate("one => one.toDataURL()") != before
    left.scroll_into_view_if_needed()
    box = left.bounding_box()
    left.hover(position={"x": box["width"] * 0.99, "y": box["height"] * 0.01})
    assert block.locator(".told").text_content().startswith(f"query 0 “word0” to key {LENGTH - 1} ")


def test_the_legend_works_by_keyboard_and_keeps_the_focus(shown: Opened) -> None:
    plot = figure(shown, "Training")
    button = plot.get_by_role("button", name="LLN+Diag")
    button.focus()
    for pressed, count in (("false", 8), ("true", 10)):
        shown.page.keyboard.press("Space")
        assert button.get_attribute("aria-pressed") == pressed and len(lines(plot)) == count
        assert button.evaluate("one => one === document.activeElement")


def test_headings_go_down_one_level_at_a_time(browser: Any, sample_page: Path) -> None:
    with opened(browser, sample_page) as found:
        levels = found.page.locator("h1, h2, h3, h4").evaluate_all("all => all.map((one) => Number(one.tagName[1]))")
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_on_paper_it_is_light_and_nothing_is_folded(browser: Any, sample_page: Path) -> None:
    with opened(browser, sample_page, theme="dark") as found:
        page = found.page
        assert page.locator("details.run").get_attribute("open") is None
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 250)"
        assert page.locator("details.run dl").is_visible() and page.get_by_text("Checksums").is_visible()
        assert page.locator("nav").is_hidden() and page.locator("#theme").is_hidden()
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert page.locator("details.run").get_attribute("open") is None


def test_hostile_text_is_only_text(browser: Any, tmp_path: Path, width: int) -> None:
    write_sample(tmp_path, hostile())
    with opened(browser, write([tmp_path], tmp_path / "report.html"), width) as found:
        page = found.page
        assert page.title() == "Linear Log-Normal attention: results"
        assert page.locator("h3").text_content() == HOSTILE
        plot = figure(found, "Training")
        assert lines(plot) == [HOSTILE, HOSTILE] and plot.locator(".legend button span").text_content() == HOSTILE
        plot.locator(".area").press("End")
        assert HOSTILE in plot.locator(".reading").text_content()
        assert page.locator("b:has-text('amp')").count() == 0


def test_twenty_runs_with_long_names(browser: Any, tmp_path: Path, width: int) -> None:
    names = [f"attention-number-{i}-with-a-name-" + "very" * 12 + "-long" for i in range(20)]
    data = experiment() | {"runs": [run(name, 5 + i / 10) for i, name in enumerate(names)]}
    data["tables"][0]["rows"] = [[name, 1.0, 2.0] for name in names]
    write_sample(tmp_path, data)
    with opened(browser, write([tmp_path], tmp_path / "report.html"), width) as found:
        plot = figure(found, "Training")
        assert len(lines(plot)) == 40
        looks = plot.locator(".legend .swatch").evaluate_all(
            "all => all.map((one) => one.style.color + one.querySelector('.marker').getAttribute('d'))"
        )
        assert len(set(looks)) == 20
        plot.locator(".area").press("End")
        assert plot.locator(".reading li").count() == 12 and "and 28 more" in plot.locator(".reading").text_content()
        plot.get_by_role("button", name="all or none").click()
        assert lines(plot) == [] and "every line is hidden" in plot.locator("svg text").first.text_content()
        plot.get_by_role("button", name="all or none").click()
        assert len(lines(plot)) == 40


def test_gaps_single_points_and_constant_lines_are_drawn(browser: Any, tmp_path: Path) -> None:
    broken = [1.0, None, math.nan, 2.0, 3.0]
    data = {
        "experiment": "odd", "title": "Odd",
        "runs": [
            {"label": "gap", "history": [{"step": i, "loss": y} for i, y in enumerate(broken)]},
            {"label": "one", "history": [{"step": 0, "loss": 2.0}]},
            {"label": "zero", "history": [{"step": i, "loss": 0.0} for i in range(3)]},
            {"label": "none", "history": []},
            {"label": "nan", "history": [{"step": i, "loss": math.nan} for i in range(3)]},
        ],
        "timing": {"lengths": [], "series": []},
        "maps": [{"label": "wide", "matrix": [[0.25, 0.75, None]]}],
    }  # fmt: skip
    write_sample(tmp_path, data)
    with opened(browser, write([tmp_path], tmp_path / "report.html")) as found:
        plot = figure(found, "Training")
        assert lines(plot) == ["gap", "one", "zero"]
        assert plot.locator("path.line[data-label=gap]").get_attribute("d").count("M") == 2
        plot.get_by_label("logarithmic y").check()
        assert plot.locator("path.line[data-label=zero]").get_attribute("d") == ""
        assert "no values" in figure(found, "Time and memory against length").locator("svg text").text_content()
        assert plot.locator("text.tick-x").all_text_contents() == ["0", "1", "2", "3", "4"]  # there is no half a step
        figure(found, "Attention maps").locator("canvas").first.press("ArrowRight")
        assert "wide 0.25" in figure(found, "Attention maps").locator(".told").text_content()


@pytest.mark.parametrize("width, theme", [(1280, "light"), (390, "dark")], ids=["desktop-light", "phone-dark"])
def test_the_results_of_the_repository_open(browser: Any, tmp_path: Path, width: int, theme: str) -> None:
    path = write([RESULTS], tmp_path / "report.html")
    with opened(browser, path, width, theme) as found:
        figures = found.page.locator("figure.plot")
        assert figures.count() >= 9
        for at in range(figures.count()):
            assert lines(figures.nth(at)), figures.nth(at).locator("h4").text_content()
        for select in found.page.locator("select").all():
            for option in range(select.locator("option").count()):
                select.select_option(index=option)
