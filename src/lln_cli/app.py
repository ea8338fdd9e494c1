"""All commands of `lln`: the library's own, each in a file of its own, and those that other packages add.

A package adds a command by an entry point of the group `lln.commands`, as the laboratory does: its name is the command's,
its value a function or a `typer.Typer`. Modules of commands import torch only when they run.
"""

import importlib.metadata
from collections.abc import Callable
from typing import Annotated, Any

import typer

from lln_cli.calibrate import calibrate
from lln_cli.convert import convert
from lln_cli.distil import distil
from lln_cli.info import info
from lln_cli.words import WRONG, InWords, tell

GROUP = "lln.commands"
LAB = "lln-lab"
OF_THE_LAB = ("demo", "reproduce", "bench", "report")


def _print_versions(asked: bool) -> None:
    if asked:
        found = (f"{name} {_version(name)}" for name in ("lln-attention", LAB) if _version(name))
        typer.echo(", ".join(found) or "lln-attention is not installed as a package")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_versions, is_eager=True, help="Print versions.")]


def options(version: Version = False) -> None:
    """What may stand before a command."""


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _add(app: typer.Typer, name: str, entry: importlib.metadata.EntryPoint) -> None:
    try:
        command: Any = entry.load()
    except Exception as reason:  # another package's fault must not take the other commands along
        _refuse(app, name, f"`lln {name}` of {entry.value} cannot be loaded: {type(reason).__name__}: {reason}")
        return
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(command)


def _refuse(app: typer.Typer, name: str, why: str) -> None:
    """A command that is not listed and whatever it is given says why it is not there."""

    def refusal() -> None:
        tell(why)
        raise typer.Exit(WRONG)

    anything: Any = {"allow_extra_args": True, "ignore_unknown_options": True}
    register: Callable[..., Any] = app.command(name, hidden=True, add_help_option=False, context_settings=anything)
    register(refusal)


def build() -> typer.Typer:
    app = typer.Typer(
        cls=InWords,
        help="Linear Log-Normal attention: what is installed, conversion and distillation of models, calibration; with "
        f"{LAB} the demo, the paper's figures and tables, benchmarks and the report.",
        no_args_is_help=True,
        add_completion=False,
    )
    app.callback()(options)
    for command in (info, convert, distil, calibrate):
        app.command()(command)
    added = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    for name, entry in added.items():
        _add(app, name, entry)
    for name in OF_THE_LAB:
        if name not in added:
            _refuse(app, name, f"`lln {name}` is a command of the laboratory: pip install {LAB}")
    return app


app = build()
