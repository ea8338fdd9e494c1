"""The documentation as a site, in a real browser: no network, nothing wider than the screen, formulas set as formulas."""

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.tests.report.browser import executable

ROOT = Path(__file__).parents[2]
PAGES = ("", "method/", "figures/", "measured/", "zoo/", "quickstart/encoder/", "reference/lln/")
VIEWS = ((1400, "light"), (390, "dark"), (1400, "dark"), (390, "light"))
# The rest of the site is looked at once, on the narrow screen, where things overflow.
NAMES = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
OTHERS = sorted({f"{name}/".removesuffix("index/") for name in NAMES} - set(PAGES))


def test_the_headline_figures_are_those_of_the_result() -> None:
    """README and the home page repeat what `lln demo` found, and a new result must be told there, too."""
    found = json.loads((ROOT / "docs/results/demo.json").read_text())["headline"]["figures"]
    for page in ("README.md", "docs/index.md"):
        text = (ROOT / page).read_text()
        for figure in found:
            assert figure["value"].replace("-", "−") in text, (
                f"{page} does not have {figure['label']} {figure['value']}"
            )


def test_every_picture_of_the_results_is_on_a_page() -> None:
    pages = [*(ROOT / "docs").rglob("*.md")]
    shown = {name for page in pages for name in re.findall(r"results/(\w+)\.svg\)", page.read_text())}
    assert shown == {path.stem for path in (ROOT / "docs/results").glob("*.svg")}
    assert not [page for page in pages if re.search(r"\]\(\S*results/\w+\.png\)", page.read_text())]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("mkdocs", reason="the site needs mkdocs: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        build, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr + done.stdout

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.mark.skipif(executable() is None, reason="no browser: install chromium (or set LLN_CHROMIUM)")
def test_the_site_in_a_browser(site: str) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable(), args=["--no-sandbox", "--disable-gpu"])
        for width, theme in VIEWS:
            context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=theme)
            context.set_default_timeout(120_000)  # milliseconds: a busy machine is slow, not wrong
            page, problems = context.new_page(), list[str]()
            page.on("console", lambda message, into=problems: into.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error, into=problems: into.append(str(error)))
            page.on(
                "request", lambda asked, into=problems: asked.url.startswith((site, "data:")) or into.append(asked.url)
            )
            for path in (*PAGES, *(OTHERS if (width, theme) == (390, "dark") else ())):
                page.goto(site + path)
                if path in ("", "method/"):
                    page.wait_for_selector("mjx-container svg")
                    formula = page.locator("mjx-container[display] svg").first.bounding_box()
                    assert formula["width"] > 100 and formula["height"] > 20
                wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert wide <= 0, f"/{path} scrolls sideways by {wide} pixels at {width}"
                assert page.locator("article img").evaluate_all("all => all.every((one) => one.naturalWidth > 0)")
                assert problems == [], f"/{path} at {width}, {theme}"
            page.goto(site)
            for card in page.locator(".headline p").all():
                box = card.bounding_box()
                assert box["y"] + box["height"] <= 844, f"not on the first screen of {width} pixels"
            context.close()
        browser.close()
