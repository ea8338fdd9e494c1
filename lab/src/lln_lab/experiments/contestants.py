"""Who is compared: a member of the zoo with options, written as on the command line.

softmax        lln_diag:target=variance,block_size=32        linformer:projected=64
elu@1          one seed, whatever --seeds is
softmax#2000   2,000 steps, whatever the others train for: a comparison at equal time
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lln.zoo import registry
from lln_lab.experiments.training import Budget


@dataclass(frozen=True)
class Contestant:
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    seeds: int | None = None  # None: as many as the others
    steps: int | None = None

    @property
    def label(self) -> str:
        chosen = [f"{key}={value}" for key, value in self.options.items()]
        chosen += [f"{self.steps:,} steps"] if self.steps else []
        return self.name + (f" ({', '.join(chosen)})" if chosen else "")

    def budget(self, common: Budget) -> Budget:
        """Of its own steps, where it has some."""
        return common.shortened(self.steps)


def parse(text: str) -> Contestant:
    """A contestant from its text; unknown members and options are refused with those that exist."""
    text, seeds = _count(text, "@", "seeds")
    text, steps = _count(text, "#", "steps")
    name, _, rest = text.partition(":")
    options = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"write options as name:option=value,option=value; {part!r} in {text!r} has no value")
        options[key.strip()] = _value(value.strip())
    known = [f.name for f in dataclasses.fields(registry.member(name).options)]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"{name} has no option {', '.join(unknown)}; its options: {', '.join(known) or 'none'}")
    try:
        registry.member(name).options(**options)
    except TypeError:
        raise ValueError(
            f"invalid values {rest!r} for the options of {name}: {registry.member(name).options()}"
        ) from None
    return Contestant(name, options, seeds, steps)


def _count(text: str, mark: str, what: str) -> tuple[str, int | None]:
    """'elu@1' -> ('elu', 1); None without the mark."""
    text, given, count = text.partition(mark)
    if given and not (count.isdigit() and int(count) > 0):
        raise ValueError(f"the number of {what} after {mark} must be at least 1, got {count!r}")
    return text, int(count) if given else None


def lineup(texts: Sequence[str], seeds: int, own_steps: bool = False) -> list[tuple[Contestant, int]]:
    """Who runs with which seed: all with the first, then all with the second, …

    `own_steps` says whether the experiment gives contestants steps of their own.
    """
    chosen = [parse(text) for text in texts]
    once("attention", [each.label for each in chosen])
    if not own_steps and (stepped := [each.label for each in chosen if each.steps]):
        raise ValueError(f"here every attention trains for the same steps, so {stepped[0]!r} can have none of its own")
    counts = [seeds if each.seeds is None else each.seeds for each in chosen]
    return [
        (each, seed) for seed in range(max(counts)) for each, count in zip(chosen, counts, strict=True) if seed < count
    ]


def each_once(texts: Sequence[str]) -> list[Contestant]:
    """The contestants, whatever their seeds."""
    return [contestant for contestant, _ in lineup([text.partition("@")[0] for text in texts], 1, own_steps=True)]


def once(what: str, names: Sequence[str]) -> None:
    """Naming one twice would count its runs as so many seeds."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"each {what} may be given once; repeated: {', '.join(twice)}")


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
