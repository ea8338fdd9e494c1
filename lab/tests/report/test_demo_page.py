"""The demo's page as a newcomer meets it: its news on the first screen, in the colours of the table, nothing cut off."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.tests.report.browser import executable, opened
from lab.tests.report.samples import experiment, run, write_sample
from lln_lab import colours
from lln_lab.experiments import demo
from lln_lab.experiments.demo_headline import headline, limits, size, times
from lln_lab.experiments.maps import Layer, attention_maps
from lln_lab.names import name_of
from lln_lab.report import write


def result() -> dict[str, Any]:
    """What the demo finds, with numbers made up and everything else its own."""
    lengths = [256, 1024, 4096, 16_384]
    taken = {"softmax": 4e-8, "lln": 3e-6, "lln_diag": 5e-6}
    seconds = {name: [taken[name] * n ** (2 if name == "softmax" else 1) for n in lengths] for name in taken}
    runs = [run(label, start) for label, start in (("softmax", 6.0), ("lln", 6.1), ("lln_diag", 5.9))]
    for one in runs:
        one |= {"budget": {"batch": 8}, "model": {"length": 256}}
    q, k = torch.randn(2, 1, 2, 256, 16, generator=torch.Generator().manual_seed(0))
    found: dict[str, Any] = {
        "experiment": "demo",
        "title": "Softmax, LLN and LLN+Diag side by side",
        "data": {"name": demo.DATA, "source": "embedded", "rows": {"train": 159, "validation": 9}, "files": {}},
        "runs": runs,
        "tables": experiment()["tables"],
        "verdicts": experiment()["verdicts"],
        "timing": {
            "lengths": lengths,
            "series": [{"label": name, "seconds": seconds[name], "bytes": None} for name in taken],
            "threads": 2,
        },
        "memory": {
            "length": 16_384,
            "bytes": {"softmax": 44_000_000, "lln": 52_000_000, "lln_diag": 61_000_000},
            "matrix_bytes": 4 * 2 * 16_384**2,
        },
        "maps": attention_maps([Layer.of(0, q, k)], [f"token{i}" for i in range(256)]),
    }
    return {**found, "headline": headline(found), "limits": limits(found)}


def test_the_headline_says_what_was_measured() -> None:
    opening = headline(result())
    assert len(opening["sentences"]) == 2 and "Python's own sources" in opening["sentences"][0]
    faster = 4e-8 * 16_384**2 / (5e-6 * 16_384)
    assert f"LLN+Diag {times(faster)} times faster" in opening["sentences"][1]
    values = [figure["value"] for figure in opening["figures"]]
    assert values[1] == f"{times(faster)}×" and values[2] == "61 MB" and values[3] == "−0.040"
    assert "lower" in opening["figures"][3]["note"] and "2.1 GB" in opening["figures"][2]["note"]
    level = result()
    level["runs"][2]["evaluation"] = level["runs"][0]["evaluation"]
    assert (
        headline(level)["figures"][3]["value"] == "±0.000"
        and "no difference yet" in headline(level)["figures"][3]["note"]
    )
    assert (size(999), size(1500), size(12_345_678)) == ("999 B", "1.5 kB", "12 MB")
    assert "--seeds 3" in limits(result())[0]


needs_browser = pytest.mark.skipif(executable() is None, reason="no browser: install chromium (or set LLN_CHROMIUM)")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=executable(), args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@needs_browser
def test_the_page_opens_with_its_news(browser: Any, tmp_path: Path) -> None:
    found = result()
    write_sample(tmp_path, {"maps": found.pop("maps")}, "demo.maps.json")
    write_sample(tmp_path, found | {"maps_beside": "demo.maps.json"}, "demo.json")
    path = write([tmp_path], tmp_path / "report.html")
    for width, theme in ((1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")):
        with opened(browser, path, width, theme) as shown:  # checks console, requests and overflow
            page = shown.page
            figures = page.locator(".figures li")
            assert figures.count() == 4
            for one in figures.all():
                box = one.bounding_box()
                assert box["y"] + box["height"] <= 844, (
                    f"not on the first screen of {width} pixels: {one.text_content()}"
                )
                cut = one.locator("b").evaluate("it => it.scrollWidth - it.clientWidth")
                assert cut <= 0, f"{one.text_content()} is cut at {width} pixels"
            titles = page.locator("figure h4").all_text_contents()
            assert titles[:3] == [
                "Time and memory against length",
                "Loss minus softmax's while training",
                "Attention maps",
            ]
            verdicts, maps = (page.get_by_text(heading, exact=True).first for heading in ("Verdicts", "Attention maps"))
            assert verdicts.bounding_box()["y"] > page.locator("figure.maps").bounding_box()["y"]
            assert verdicts.bounding_box()["y"] < page.get_by_text("Training", exact=True).last.bounding_box()["y"]
            assert maps.is_visible() and page.get_by_text("What this cannot say").is_visible()
            assert page.get_by_text("wikitext").count() == 0
            _same_colours(page, dark=theme == "dark")


def _same_colours(page: Any, dark: bool) -> None:
    """Lines and large figures have the colours that pictures have, or their dark counterparts."""
    plot = page.locator("figure.plot").first
    for name in colours.OWN:
        light, shaded = colours.PALETTE[colours.OWN[name]]
        expected = tuple(int((shaded if dark else light)[i : i + 2], 16) for i in (1, 3, 5))
        line = plot.locator(f"path.line[data-label='{name_of(name)}']")
        assert line.evaluate("it => getComputedStyle(it).stroke") == "rgb({}, {}, {})".format(*expected)
        if name != "softmax":
            shown = page.locator(f".figures .colour-{colours.OWN[name]} b").first
            assert shown.evaluate("it => getComputedStyle(it).color") == "rgb({}, {}, {})".format(*expected)
