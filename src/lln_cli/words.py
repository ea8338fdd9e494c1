"""Wrong input and full disks end in a message and an exit code, not in a traceback."""

import errno
import os
from collections.abc import Iterator
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

WRONG = 2  # exit code
TRACEBACK = "LLN_TRACEBACK"
EVERYTHING = "install everything that the commands may need: pip install 'lln-attention[all]' 'lln-lab[all]'"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# What libraries that write by themselves say instead of raising an OSError: those written in Rust, and torch.save.
NO_ROOM_SAID = (*(f"(os error {number})" for number in NO_ROOM), "inline_container.cc", "PytorchStreamWriter failed")


class InWords(TyperGroup):
    """Wrong values, files that are not there or damaged, no room, and what is not installed; LLN_TRACEBACK=1 shows where."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as wrong:
            said = in_words(wrong)
            if said is None or os.environ.get(TRACEBACK):
                raise
            tell(said, EVERYTHING if isinstance(wrong, ImportError) else None)
            Console(stderr=True).print(f"[dim]hint: set {TRACEBACK}=1 to see where it happened[/]", highlight=False)
            raise typer.Exit(WRONG) from wrong


def in_words(wrong: Exception) -> str | None:
    """What to say, or None where it is no mistake of the user's that anyone knows of."""
    if any(is_no_room(one) for one in chain(wrong)):
        return f"the disk is full: make room, or write elsewhere with --out ({wrong})"
    if type(wrong).__name__ == "SafetensorError":
        return f"a file of weights cannot be read: {wrong}"
    if isinstance(wrong, ValueError | OSError | ImportError):
        return str(wrong) or type(wrong).__name__
    return None


def is_no_room(wrong: BaseException) -> bool:
    if isinstance(wrong, OSError):
        return wrong.errno in NO_ROOM
    return not isinstance(wrong, ValueError) and any(said in str(wrong) for said in NO_ROOM_SAID)


def chain(wrong: BaseException | None) -> Iterator[BaseException]:
    """The error, and those it came from."""
    while wrong is not None:
        yield wrong
        wrong = wrong.__cause__ or wrong.__context__


def tell(said: str, hint: str | None = None) -> None:
    """An error, and what to do about it."""
    console = Console(stderr=True)
    console.print(f"[bold red]error:[/] {escape(said)}", highlight=False, soft_wrap=True)
    if hint is not None:
        console.print(f"hint: {escape(hint)}", highlight=False, soft_wrap=True)
