"""One colour for each attention, on every page and in every picture: this table is the only place that has them.

An attention is drawn in one colour of the palette and with one marker. Softmax, LLN and LLN+Diag have colours that nobody
shares. A variant, such as "lln_diag (target=paper)", has its attention's colour in a lighter tint and a marker of its own.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lln_lab.names import LABELS

# (on a light page and in pictures, on a dark page): apart for colour-blind readers, and readable against both
PALETTE = (
    ("#3c4350", "#d3d9e3"),
    ("#d1570a", "#ff9350"),
    ("#0b6bb0", "#5fb2f5"),
    ("#00866a", "#41cfa8"),
    ("#a8448f", "#ea93d3"),
    ("#927200", "#e2c14e"),
    ("#6757c8", "#aea2ff"),
    ("#84552f", "#cfa27e"),
)
MARKERS = 6  # shapes of assets/plot.js and of figure.py
TINTS = (0.0, 0.42, 0.62)  # share of white in the first, second and any further variant
OWN = {"softmax": 0, "lln": 1, "lln_diag": 2}
OTHERS = (
    "block_diagonal", "elu", "relu", "performer", "nystromformer",
    "linformer", "cosformer", "skyformer", "longformer", "reformer",
    "quadratic", "flash", "rfa", "tnn", "transformer_ls",
    "transnormer_t1", "transnormer_t2", "agent", "gated_delta", "hedgehog",
    "lolcats", "mala", "mhla", "polaformer", "sla",
    "near_far",
)  # fmt: skip
ALIASES = {
    "sdpa": "softmax",
    "softmax (sdpa)": "softmax",
    "original": "softmax",
    "lln_entropy": "lln",
    "native": "lln",
    "native + diag": "lln_diag",
    "native, matched": "lln (matched)",
    "native, causal": "lln (causal)",
    "native, bfloat16": "lln (bfloat16)",
    "lln_paper": "lln (target=paper)",
    "lln_unmatched": "lln (unmatched)",
}
_BY_NAME = {shown.lower(): name for name, shown in LABELS.items()}


@dataclass(frozen=True)
class Style:
    """How an attention is drawn: its place in the palette, its marker, and the share of white in its colour."""

    colour: int
    marker: int
    tint: float = 0.0

    @property
    def light(self) -> str:
        """The colour on white, as #rrggbb."""
        return tinted(PALETTE[self.colour][0], self.tint)


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """The style of every label. Those that the table does not know get what is left, in the order they come."""
    found: dict[str, Style] = {}
    variants: dict[str, int] = {}
    unknown = []
    for label in dict.fromkeys(labels):
        known = _known(label.lower())
        base = re.split(r"[ (:@]", known)[0]
        if base not in OWN and base not in OTHERS:
            unknown.append(label)
        elif known == base:
            found[label] = _of(base)
        else:
            number = variants[base] = variants.get(base, 0) + 1
            style = _of(base)
            tint = TINTS[min(number, len(TINTS) - 1)]
            found[label] = Style(style.colour, (style.marker + number) % MARKERS, tint)
    taken = {(style.colour, style.marker) for style in found.values()}
    free = [pair for pair in _pairs() if pair not in taken]
    return found | {label: Style(*free[i % len(free)]) for i, label in enumerate(unknown)}


def of(label: str) -> str:
    """The colour of one attention on white."""
    return styles([label])[label].light


def tinted(colour: str, share: float) -> str:
    """Nearer to white by a share of the way."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)


def as_css() -> str:
    """The palette as custom properties --c0, --c1, ... that follow the page's theme."""
    return "".join(f"--c{i}: light-dark({light}, {dark});" for i, (light, dark) in enumerate(PALETTE))


def _known(label: str) -> str:
    """The name under which the table has an attention, given that or the one a reader knows: "lln+diag (target=paper)"."""
    base, parenthesis, options = label.partition(" (")
    label = _BY_NAME.get(base, base) + parenthesis + options
    return ALIASES.get(label, label)


def _pairs() -> list[tuple[int, int]]:
    """All colours with all markers: first those of the others, and those that nobody shares with other markers last."""
    count, own = len(PALETTE), len(OWN)
    first = [(own + i % (count - own), _marker(i)) for i in range((count - own) * MARKERS)]
    return first + [(colour, marker) for colour in range(own) for marker in range(MARKERS) if marker != colour]


def _of(base: str) -> Style:
    if base in OWN:
        return Style(OWN[base], OWN[base])
    at, width = OTHERS.index(base), len(PALETTE) - len(OWN)
    return Style(len(OWN) + at % width, _marker(at))


def _marker(at: int) -> int:
    """Of the colours that several share, the marker of the at-th: neighbours differ in both, until a last row of one marker."""
    width = len(PALETTE) - len(OWN)
    row = at // width
    return (row + at) % width if row < width else row
