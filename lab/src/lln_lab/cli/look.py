"""`lln look MODEL "some text"`: attention maps of a pretrained model as one page."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lln_cli.out_options import folder_to_write
from lln_cli.quiet import quiet_libraries
from lln_lab.cli.training import show


def look(
    model: Annotated[str, typer.Argument(help="Folder or Hugging Face name of a model with its tokenizer.")],
    text: Annotated[str | None, typer.Argument(help="Text to read; or use --file.")] = None,
    file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Read the text from this file instead.")
    ] = None,
    out: Annotated[Path, folder_to_write("Folder for look.html and look.json.")] = Path("runs/look"),
    layer: Annotated[list[int] | None, typer.Option(help="Only this layer; may be repeated.")] = None,
    head: Annotated[list[int] | None, typer.Option(help="Only this head; may be repeated.")] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Block size of LLN+Diag.")] = 64,
    max_length: Annotated[int, typer.Option(min=2, help="Cut the text after this many tokens.")] = 16_384,
) -> None:
    """Show what a model attends to in your text: softmax, LLN and their ratio, for every layer and head."""
    if (text is None) == (file is None):
        raise typer.BadParameter("give either a text or --file", param_hint="TEXT")
    quiet_libraries()
    from lln_lab.look.page import look as look_at

    read = text if text is not None else _read(file)
    console = Console()
    with console.status("loading") as status:
        page, result = look_at(
            model, read or "", out, layers=layer, heads=head, block_size=block_size, max_length=max_length,
            on_map=lambda what: status.update(what),
        )  # fmt: skip
    show(result, console)
    console.print(f"written: {page}", highlight=False, soft_wrap=True)


def _read(file: Path | None) -> str:
    assert file is not None
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is not UTF-8 text", param_hint="--file") from None
