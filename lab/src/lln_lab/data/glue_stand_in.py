"""Generated stand-ins for GLUE, one for each kind of task. None of them is the task whose name they stand in for.

They can be learned by a small model from a few thousand rows, and not by the words alone: negation and contrast turn
sentiment round, and the negatives of a pair share the words of the positives.
"""

from typing import Any

from lln_lab.data.words import (
    ASPECTS,
    INTENSIFIERS,
    NEGATIONS,
    NEGATIVE,
    PEOPLE,
    PLACES,
    POSITIVE,
    THINGS,
    TIMES,
    Random,
    chance,
    one,
    some,
)


def opinion(random: Random, positive: bool) -> str:
    """One clause of this polarity; a quarter of them say it by negating the opposite."""
    aspect = one(random, ASPECTS)
    negated = chance(random, 1 / 4)
    word = one(random, POSITIVE if positive != negated else NEGATIVE)
    if negated:
        return f"the {aspect} is {one(random, NEGATIONS)} {word}"
    return f"the {aspect} is {one(random, INTENSIFIERS)} {word}" if chance(random, 1 / 2) else f"a {word} {aspect}"


def sentiment(random: Random) -> dict[str, Any]:
    """Label 1: positive. In a contrast, every other sentence, the main clause decides."""
    label = int(random.integers(2))
    main = opinion(random, bool(label))
    shape = int(random.integers(4))
    if shape == 0:
        main = f"{opinion(random, not label)} , but {main}"
    elif shape == 1:
        main = f"{main} , although {opinion(random, not label)}"
    return _row(f"{main} .", None, label)


SUBJECTS = (("the boy", "s"), ("the girl", "s"), ("the dog", "s"), ("the boys", "p"), ("the girls", "p"), ("dogs", "p"))
VERBS = (("likes", "like"), ("sees", "see"), ("wants", "want"), ("finds", "find"), ("needs", "need"))


def acceptability(random: Random) -> dict[str, Any]:
    """Label 1: grammatical. The others break agreement across a phrase in between, or the order of two words."""
    label = int(random.integers(2))
    subject, number = SUBJECTS[int(random.integers(len(SUBJECTS)))]
    other, _ = SUBJECTS[int(random.integers(len(SUBJECTS)))]
    between = f" near {other}" if chance(random, 1 / 2) else ""
    singular, plural = VERBS[int(random.integers(len(VERBS)))]
    break_order = not label and chance(random, 1 / 2)
    agrees = bool(label) or break_order
    verb = singular if (number == "s") == agrees else plural
    thing = one(random, THINGS)
    tail = f"{thing} the" if break_order else f"the {thing}"
    return _row(f"{subject}{between} {verb} {tail} {one(random, TIMES)} .", None, label)


def _facts(random: Random) -> tuple[list[str], list[str], list[str]]:
    """Three people, each with a thing in a place of their own."""
    return some(random, PEOPLE, 3), some(random, THINGS, 3), [f"in the {place}" for place in some(random, PLACES, 3)]


def _tell(people: list[str], things: list[str], details: list[str]) -> str:
    told = zip(people, things, details, strict=True)
    return " and ".join(f"{person} left the {thing} {detail}" for person, thing, detail in told) + " ."


def answerable(random: Random) -> dict[str, Any]:
    """Label 0: the sentence answers the question. 1: it tells the time where the place is asked for or the other way
    round, which is easy to see, or it names the person and the thing, but not together, which is not."""
    label = int(random.integers(2))
    people, things, details = _facts(random)
    where = chance(random, 1 / 2)
    if not where:
        details = some(random, TIMES, 3)
    asked = int(random.integers(3))
    apart = bool(label) and chance(random, 1 / 2)
    thing = things[(asked + apart) % 3]
    word = "where" if where != (bool(label) and not apart) else "when"
    return _row(f"{word} did {people[asked]} leave the {thing} ?", _tell(people, things, details), label)


def _inference(random: Random, relation: str) -> tuple[str, str]:
    """Every other claim that does not follow shows it by a negation, or by speaking of something else; MNLI's do too."""
    people, things, places = _facts(random)
    i = int(random.integers(3))
    other = (i + 1 + int(random.integers(2))) % 3
    shows = chance(random, 1 / 2)
    thing, says = things[i], f"is {places[i]}"
    if relation == "contradiction":
        says = f"is not {places[i]}" if shows else f"is {places[other]}"
    elif relation == "neutral" and shows:
        says = f"was lost {one(random, TIMES)}"
    elif relation == "neutral":
        thing = things[other]
    return _tell(people, things, places), f"the {thing} of {people[i]} {says} ."


def inference(random: Random) -> dict[str, Any]:
    """Label 0: the second sentence follows; 1: it speaks of what the first does not tell; 2: the first rules it out."""
    label = int(random.integers(3))
    return _row(*_inference(random, ("entailment", "neutral", "contradiction")[label]), label)


def _two_way(random: Random, entailment: int) -> dict[str, Any]:
    label = int(random.integers(2))
    other = "neutral" if chance(random, 1 / 2) else "contradiction"
    return _row(*_inference(random, "entailment" if label == entailment else other), label)


def follows_is_0(random: Random) -> dict[str, Any]:
    """Label 0: the second sentence follows from the first (RTE); 1: it does not."""
    return _two_way(random, 0)


def follows_is_1(random: Random) -> dict[str, Any]:
    """Label 1: the second sentence follows from the first (WNLI); 0: it does not."""
    return _two_way(random, 1)


def _event(random: Random, giver: str, thing: str, taker: str, place: str) -> str:
    return one(
        random,
        (
            f"{giver} gave the {thing} to {taker} in the {place}",
            f"in the {place} {taker} was given the {thing} by {giver}",
            f"the {thing} went from {giver} to {taker} in the {place}",
            f"{taker} got the {thing} from {giver} in the {place}",
        ),
    )


def paraphrase(random: Random) -> dict[str, Any]:
    """Label 1: both sentences tell the same event; 0: giver and taker are swapped, or the thing or the place differs."""
    label = int(random.integers(2))
    (giver, taker), (thing, thing2), (place, place2) = (some(random, of, 2) for of in (PEOPLE, THINGS, PLACES))
    first = _event(random, giver, thing, taker, place)
    if not label:
        change = int(random.integers(4))
        if change < 2:
            giver, taker = taker, giver
        elif change == 2:
            thing = thing2
        else:
            place = place2
    return _row(f"{first} .", f"{_event(random, giver, thing, taker, place)} .", label)


def similarity(random: Random) -> dict[str, Any]:
    """The label is how many of five details (giver, thing, taker, place, time) both sentences share."""
    shared = int(random.integers(6))
    givers, takers = some(random, PEOPLE[:8], 2), some(random, PEOPLE[8:], 2)
    slots = [givers, some(random, THINGS, 2), takers, some(random, PLACES, 2), some(random, TIMES, 2)]
    differs = set(random.permutation(5)[shared:].tolist())
    first, second = ([slot[int(n == 1 and i in differs)] for i, slot in enumerate(slots)] for n in (0, 1))
    text, pair = (f"{_event(random, *details[:4])} {details[4]} ." for details in (first, second))
    return _row(text, pair, float(shared))


def _row(text: str, pair: str | None, label: int | float) -> dict[str, Any]:
    return {"text": text, "pair": pair, "label": label}


KINDS = {
    "cola": (acceptability, "sentences with and without broken agreement or order"),
    "mnli": (inference, "what follows from three facts, three ways"),
    "mrpc": (paraphrase, "the same event or a similar one"),
    "qnli": (answerable, "whether three facts answer a question"),
    "qqp": (paraphrase, "the same event or a similar one"),
    "rte": (follows_is_0, "what follows from three facts, two ways"),
    "sst2": (sentiment, "opinions with negation and contrast"),
    "stsb": (similarity, "how many of five details two sentences share"),
    "wnli": (follows_is_1, "what follows from three facts, two ways"),
}
