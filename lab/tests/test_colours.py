"""One attention, one colour: in the table, in the committed pictures and in the page's style."""

import re
from pathlib import Path

import pytest
from PIL import Image

from lln.zoo import names
from lln_lab import colours
from lln_lab.history import regular
from lln_lab.report.page import render

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SHOWN = {  # pictures, and what is drawn in them
    "fig2": ("softmax", "lln", "elu", "relu", "quadratic"),
    "fig7": ("softmax", "lln"),
    "fig8": ("softmax", "lln", "lln_diag", "elu", "performer", "nystromformer", "cosformer"),
    "table3": ("softmax", "lln_diag", "linformer"),
    "fig10": ("lln_diag",),
    "length": ("softmax", "lln_diag", "elu"),
    "kernels": ("softmax", "lln", "lln_diag"),
}


def test_every_attention_of_the_zoo_has_a_style_of_its_own() -> None:
    found = colours.styles(names())
    assert len({(style.colour, style.marker) for style in found.values()}) == len(names())
    for own in colours.OWN:  # nobody shares the colour of these three
        assert [name for name, style in found.items() if style.colour == found[own].colour] == [own]


def test_a_style_does_not_depend_on_who_else_is_drawn() -> None:
    assert colours.styles(["elu", "lln_diag"]).items() <= colours.styles(names()).items()
    assert colours.of("sdpa") == colours.of("softmax") and colours.of("LLN+Diag") == colours.of("lln_diag")
    variants = colours.styles(["lln_diag", "lln_diag (target=paper)", "lln_diag (target=variance)"])
    assert len({style.light for style in variants.values()}) == 3
    assert len({style.colour for style in variants.values()}) == 1


@pytest.mark.parametrize("picture", SHOWN)
def test_committed_pictures_have_the_colours_of_the_table(picture: str) -> None:
    drawn = (RESULTS / f"{picture}.svg").read_text()
    with Image.open(RESULTS / f"{picture}.png") as image:
        assert image.mode in ("RGB", "RGBA"), "a palette would merge colours"
        pixels = {"#{:02x}{:02x}{:02x}".format(*pixel[:3]) for _, pixel in image.convert("RGB").getcolors(1 << 24)}
    for name in SHOWN[picture]:
        assert f"stroke: {colours.of(name)}" in drawn, f"{name} has another colour in {picture}.svg"
        assert colours.of(name) in pixels, f"{name} has another colour in {picture}.png"


def test_the_page_has_the_colours_of_the_table() -> None:
    style = re.findall(r"--c(\d): light-dark\((#\w{6}), (#\w{6})\)", render([]))
    assert [(light, dark) for _, light, dark in style] == list(colours.PALETTE)


def test_a_log_out_of_turn_makes_no_tooth() -> None:
    even = [(10, 5.0), (20, 4.0), (30, 3.0)]
    assert regular(even) == even
    cut = [(1, 9.0), (10, 4.5556), (20, 4.0), (21, 8.0), (30, 2.4444), (40, 2.0), (50, 1.0)]
    whole = [(10, 5.0), (20, 4.0), (30, 3.0), (40, 2.0), (50, 1.0)]
    assert [(step, round(value, 3)) for step, value in regular(cut)] == whole
    assert regular([]) == []
