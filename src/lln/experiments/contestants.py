"""Who is compared: a member of the zoo with options, written as on the command line.

softmax        lln_diag:target=variance,block_size=32        linformer:projected=64
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from lln.zoo import registry


@dataclass(frozen=True)
class Contestant:
    name: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        chosen = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return self.name + (f" ({chosen})" if chosen else "")


def parse(text: str) -> Contestant:
    """A contestant from its text; unknown members and options are refused with those that exist."""
    name, _, rest = text.partition(":")
    options = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"options are written name:option=value,option=value; {part!r} in {text!r} has no value")
        options[key.strip()] = _value(value.strip())
    known = [f.name for f in dataclasses.fields(registry.member(name).options)]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"{name} has no option {', '.join(unknown)}; it has: {', '.join(known) or 'none'}")
    return Contestant(name, options)


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
