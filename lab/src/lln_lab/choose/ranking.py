"""From timings and quality to an order with reasons.

    1  trained beside softmax with three seeds or more, and on no task behind it by its 95 % interval; softmax itself
    2  trained with one or two seeds, or never trained here
    3  behind softmax by its interval on some task
    4  too slow or too large for the limits

Inside a group the faster one comes first.
"""

from dataclasses import dataclass

from lln import zoo
from lln_lab.choose.measure import Asked, Timing
from lln_lab.choose.quality import Row, nearest

FAILED = {"timeout": "took longer than the limit", "OOM": "needed more memory than the limit"}


@dataclass(frozen=True)
class Place:
    """A line of the answer."""

    timing: Timing
    quality: list[Row]  # at the length nearest to what was asked
    group: int
    reason: str


def rank(asked: Asked, timings: list[Timing], rows: list[Row]) -> list[Place]:
    places = [_place(asked, timing, nearest(rows, timing.member, asked.length, asked.causal)) for timing in timings]
    return sorted(places, key=lambda place: (place.group, place.timing.seconds))


def _place(asked: Asked, timing: Timing, quality: list[Row]) -> Place:
    if timing.status != "ok":
        return Place(timing, quality, 4, FAILED[timing.status])
    if timing.member == "softmax":
        return Place(timing, [], 1, "exact; what the others are compared with")
    notes = [str(row) for row in quality] or ["never trained here"]
    card = zoo.card(timing.member)
    if card.replaces_feed_forward:
        notes.append("replaces the feed-forward layer too: its time includes both")
    if card.fixed_length:
        notes.append("weights for every position: no input longer than it was built for")
    if card.growth == "quadratic":
        notes.append("not linear in the length")
    if asked.causal and asked.serving:
        notes.append("time of a prompt, not of a decoding step")
    behind, decided = any(row.behind for row in quality), any(row.interval is not None for row in quality)
    group = 3 if behind else 1 if decided else 2
    return Place(timing, quality, group, "; ".join(notes))


def caveat(asked: Asked, places: list[Place]) -> str:
    """What the order does not say."""
    best = places[0].timing
    told = [row for place in places for row in place.quality]
    steps = f"{min(row.steps for row in told):,} to {max(row.steps for row in told):,}" if told else "no"
    return (
        f"{best.member} comes first: the fastest here of those that were not behind softmax in small runs of {steps} steps. "
        "Those runs say how attentions compare at that size and budget, not on your task. "
        + (
            "Below a few hundred tokens softmax is often the best choice. "
            if asked.length <= 512
            else "Times are of the attention layer alone; in a model the rest takes its share. "
        )
        + "Measure the first two or three in your own model."
    )
