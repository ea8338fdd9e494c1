"""Generated long texts in bytes: reviews with opinions scattered over them, and articles on a topic with words of its own."""

import numpy

from lln_lab.data.glue_stand_in import opinion
from lln_lab.data.words import ASPECTS, PEOPLE, PLACES, THINGS, TIMES, Random, one

DISSENT = 0.3  # share of the opinions in a review that are against its verdict
TOPICS, TOPIC_WORDS = 32, 8
TOPIC_SHARE = 0.3  # of the words of an article: with 0.1, small models stay at chance for thousands of steps
SYLLABLES = ("ba", "co", "du", "fe", "gi", "ho", "ju", "ka", "le", "mi", "no", "pu", "ra", "si", "to", "va")
COMMON = numpy.array(
    [*ASPECTS, *PEOPLE, *PLACES, *THINGS, "a", "and", "in", "is", "of", "on", "the", "to", "was", "with"]
)
SPREAD = 77 * numpy.arange(TOPICS * TOPIC_WORDS) % (TOPICS * TOPIC_WORDS)  # so that a topic's words do not rhyme
RARE = numpy.array([a + b for a in SYLLABLES for b in SYLLABLES])[SPREAD].reshape(TOPICS, TOPIC_WORDS)


def review(random: Random, positive: bool, length: int) -> bytes:
    """Between half of `length` and all of it: every other sentence an opinion, most of them of this polarity."""
    goal = int(random.integers(length // 2, length + 1))
    opinions = max(1, goal // 96)  # an opinion and the sentence after it take at most 96 bytes
    against = random.permutation(opinions) < int(DISSENT * opinions)
    parts = []
    for dissent in against.tolist():
        parts.append(f"{opinion(random, positive != dissent)} .")
        parts.append(f"{one(random, PEOPLE)} left the {one(random, THINGS)} in the {one(random, PLACES)}")
        parts.append(f"{one(random, TIMES)} .")
    return " ".join(parts).encode()[:length]


def article(random: Random, topic: int, length: int) -> bytes:
    """Common words, three of ten replaced by the eight words of a topic."""
    count = length // 5
    words = COMMON[random.integers(0, len(COMMON), count)]
    rare = random.random(count) < TOPIC_SHARE
    words[rare] = RARE[topic, random.integers(0, TOPIC_WORDS, int(rare.sum()))]
    return " ".join(words.tolist()).encode()[: int(random.integers(length // 2, length + 1))]
