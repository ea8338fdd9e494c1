"""The options that the commands on pretrained models share."""

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(help="Folder or name of a pretrained model with its tokenizer, or a .gguf file.")]
TestData = Annotated[Path | None, typer.Option(exists=True, help="Texts to measure on; default: --data.")]
Attention = Annotated[str, typer.Option(help="lln_diag, lln or lln_near_far.")]
BlockSize = Annotated[int, typer.Option(min=1, help="Block size of lln_diag and lln_near_far.")]
Neighbours = Annotated[int, typer.Option(min=0, help="Blocks beside its own that are near, of lln_near_far.")]
FirstTokens = Annotated[int, typer.Option(min=0, help="First tokens of the text that are near, of lln_near_far.")]
MaxLength = Annotated[int, typer.Option(min=8, help="Tokens a text is cut at.")]
Join = Annotated[int, typer.Option(min=0, help="Join lines to texts of so many characters; 0: a line each.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads; 0 leaves it to torch.")]
