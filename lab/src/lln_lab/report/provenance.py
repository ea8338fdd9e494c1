"""What was run: command, seed, commit, versions, machine, data and settings, as names and values."""

from typing import Any

from lln_lab.report.blocks import Fact
from lln_lab.report.numbers import text, words


def facts(data: dict[str, Any]) -> list[Fact]:
    run = data["provenance"]
    found = [
        Fact("Command", str(run["command"]), code=True) if run.get("command") else None,
        Fact("Seed", text(run["seed"])) if run.get("seed") is not None else None,
        Fact("Finished", str(run["time"])) if run.get("time") else None,
        Fact("Commit", str(run["commit"]), code=True) if run.get("commit") else None,
        _named("Versions", run.get("versions")),
        _named("Machine", run.get("machine")),
        *_data(data.get("data")),
        Fact("Preset", text(data["preset"])) if data.get("preset") is not None else None,
        _named("Settings", data.get("settings")),
    ]
    return [fact for fact in found if fact is not None]


def _named(name: str, values: Any, code: bool = False) -> Fact | None:
    if not isinstance(values, dict) or not values:
        return None
    return Fact(name, [(str(key) if code else words(str(key)), text(value)) for key, value in values.items()], code)


def _data(data: Any) -> list[Fact | None]:
    if not isinstance(data, dict):
        return [Fact("Data", text(data)) if data is not None else None]
    plain = {key: value for key, value in data.items() if not isinstance(value, dict)}
    parts = {key: value for key, value in data.items() if isinstance(value, dict)}
    return [
        _named("Data", plain),
        *(_named(words(str(key)).capitalize(), part) for key, part in parts.items() if key != "files"),
        _named("Checksums", parts.get("files"), code=True),
    ]
