"""From a result to a section of the page: the first reader that knows its form, and what all forms have in common."""

from typing import Any

from lln_lab.colours import OWN
from lln_lab.names import in_sentence
from lln_lab.report.blocks import Figure, Headline, Section, Verdict
from lln_lab.report.collect import Result
from lln_lab.report.numbers import text, words
from lln_lab.report.pictures import embed
from lln_lab.report.provenance import facts
from lln_lab.report.readers import benchmarks, experiment, figures, generic

READERS = (experiment.READER, figures.READER, *benchmarks.READERS, generic.READER)
UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError)


def read(result: Result) -> Section:
    """A part that cannot be read becomes a notice: a page of other people's results must not fail for one of them."""
    data = result.data
    reader = next(reader for reader in READERS if reader.knows(data))
    section = Section(reader.title(data) or words(result.path.stem).capitalize(), reader.group, result.name)
    section.facts = facts(data)
    try:
        section.verdicts = _verdicts(data.get("verdicts"))
    except UNREADABLE as reason:
        section.notices.append(f"verdicts could not be read ({_in_words(reason)})")
    try:
        section.headline, section.limits = (
            _headline(data.get("headline")),
            [text(one) for one in data.get("limits") or ()],
        )
    except UNREADABLE as reason:
        section.notices.append(f"the headline could not be read ({_in_words(reason)})")
    for part in reader.parts_of(data):
        try:
            section.blocks += part(data)
        except UNREADABLE as reason:
            section.notices.append(f"{words(part.__name__)} could not be read ({_in_words(reason)})")
    if result.picture is not None:
        try:
            section.blocks.append(embed(result.picture, f"{section.title}, as drawn by the command"))
        except ValueError as reason:
            section.notices.append(str(reason))
    return section


def _verdicts(entries: Any) -> list[Verdict]:
    return [
        Verdict(
            in_sentence(text(entry.get("claim"))),
            text(entry.get("outcome")),
            in_sentence(text(entry.get("numbers", ""))),
        )
        for entry in entries or ()
    ]


def _headline(entry: Any) -> Headline | None:
    if not entry:
        return None
    figures = [
        Figure(text(one["value"]), text(one["label"]), text(one.get("note", "")), OWN.get(str(one.get("attention"))))
        for one in entry["figures"]
    ]
    return Headline([text(sentence) for sentence in entry["sentences"]], figures)


def _in_words(reason: Exception) -> str:
    return f"{reason.args[0]!r} is missing" if isinstance(reason, KeyError) and reason.args else str(reason)
