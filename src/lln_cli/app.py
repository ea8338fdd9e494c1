"""All commands of `lln`: the library's own, one file each, and those of other packages.

A package adds a command by an entry point in the group `lln.commands`, as the laboratory does. Its name is the name of the
command, its value a function or a `typer.Typer`. Modules of commands import torch only when they run.
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
# Every command in the order of the help, with its line there. A command's own --help says more.
SUMMARY = {
    "demo": "See it work: train, time and compare, in a few minutes.",
    "info": "Show versions, backends and the range of matching.",
    "look": "Show what a model attends to, as a page of attention maps.",
    "choose": "Find the fastest attention for your shape, on this machine.",
    "convert": "Make a pretrained softmax model linear.",
    "distil": "Make it linear and train it to follow the original.",
    "evaluate": "Compare a model with its linear versions on tasks.",
    "tabular": "Give TabPFN linear attention and measure it.",
    "reproduce": "Repeat the paper's tables and figures.",
    "evidence": "Train softmax and linear attentions on eleven tasks.",
    "bench": "Measure speed and memory.",
    "gpu": "Compile the GPU kernels ahead of time, without a GPU.",
    "report": "Turn results into one self-contained page.",
    "calibrate": "Measure the table of moment matching again.",
}
OWN = (info, convert, distil, calibrate)
OF_THE_LAB = [name for name in SUMMARY if name not in {command.__name__ for command in OWN}]


class Ordered(InWords):
    """Commands in the order of SUMMARY; those of other packages after them."""

    def list_commands(self, ctx: Any) -> list[str]:
        known = [name for name in SUMMARY if name in self.commands]
        return known + [name for name in self.commands if name not in SUMMARY]


def _print_versions(asked: bool) -> None:
    if asked:
        found = (f"{name} {_version(name)}" for name in ("lln-attention", LAB) if _version(name))
        typer.echo(", ".join(found) or "lln-attention is not installed as a package")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_versions, is_eager=True, help="Show the version and exit.")
]


def options(version: Version = False) -> None:
    """Options before a command."""


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
        app.add_typer(command, name=name, short_help=SUMMARY.get(name))
    else:
        app.command(name, short_help=SUMMARY.get(name))(command)


def _refuse(app: typer.Typer, name: str, why: str) -> None:
    """A hidden command that, whatever its arguments, explains why it is not available."""

    def refusal() -> None:
        tell(why)
        raise typer.Exit(WRONG)

    anything: Any = {"allow_extra_args": True, "ignore_unknown_options": True}
    register: Callable[..., Any] = app.command(name, hidden=True, add_help_option=False, context_settings=anything)
    register(refusal)


def build() -> typer.Typer:
    app = typer.Typer(
        cls=Ordered,
        help=f"Linear Log-Normal attention. Results go to the folder runs/ unless --out says otherwise. "
        f"All but {', '.join(command.__name__ for command in OWN[:-1])} and {OWN[-1].__name__} come with {LAB}.",
        no_args_is_help=True,
        add_completion=False,
    )
    app.callback()(options)
    for command in OWN:
        app.command(short_help=SUMMARY[command.__name__])(command)
    added = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    for name, entry in added.items():
        _add(app, name, entry)
    for name in OF_THE_LAB:
        if name not in added:
            _refuse(app, name, f"`lln {name}` comes with the laboratory: pip install {LAB}")
    return app


app = build()
