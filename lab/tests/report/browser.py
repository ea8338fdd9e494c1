"""A real browser for pages on disk: what it logs and what it asks for is kept."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    return os.environ.get("LLN_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@dataclass
class Opened:
    """A page and everything that must not happen on it."""

    page: Any
    url: str
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def check(self) -> None:
        assert self.problems == []
        assert self.requests == [self.url]
        wide = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"the page scrolls sideways by {wide} pixels"


@contextmanager
def opened(browser: Any, path: Path, width: int = 1280, theme: str = "light") -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=theme, reduced_motion="reduce")
    try:
        found = Opened(context.new_page(), path.resolve().as_uri())
        found.page.on("console", lambda message: found.problems.append(f"console {message.type}: {message.text}"))
        found.page.on("pageerror", lambda error: found.problems.append(f"error: {error}"))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.set_default_timeout(60_000)  # a busy machine is slow, not wrong
        found.page.goto(found.url)
        yield found
        found.check()
    finally:
        context.close()
