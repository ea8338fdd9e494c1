"""Word lists and the drawing of words, shared by the generated texts."""

from collections.abc import Sequence

import numpy

Random = numpy.random.Generator


def _words(text: str, between: str | None = None) -> tuple[str, ...]:
    return tuple(text.split(between))


POSITIVE = _words(
    "brilliant charming clever delightful engaging fresh funny graceful gripping heartfelt honest imaginative lovely "
    "memorable moving playful rich sharp tender witty"
)
NEGATIVE = _words(
    "awful bland boring clumsy crude dull empty flat forced hollow lazy lifeless messy pointless predictable shallow "
    "sloppy stale tedious tired"
)
ASPECTS = _words(
    "acting camera cast dialogue direction drama editing ending film humour music pacing plot premise romance "
    "script sequel story style thriller"
)
INTENSIFIERS = _words("quite really rather truly very")
NEGATIONS = ("not", "never", "hardly", "anything but", "far from")
PEOPLE = _words("adam anna ben carla david emma felix greta henry ida jonas karin leo maria nils olga")
THINGS = _words("book box coat cup hat key lamp letter map pen phone ring ticket watch")
PLACES = _words("attic bank cellar garage garden hall kitchen library office park school station")
TIMES = _words("at dawn,at night,at noon,in spring,in winter,last week,on friday,on monday,yesterday", ",")


def one(random: Random, words: Sequence[str]) -> str:
    return words[int(random.integers(len(words)))]


def some(random: Random, words: Sequence[str], count: int) -> list[str]:
    """Different ones, in random order."""
    return [words[i] for i in random.permutation(len(words))[:count]]


def chance(random: Random, probability: float) -> bool:
    return bool(random.random() < probability)
