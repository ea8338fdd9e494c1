"""The options that the commands on pretrained models share."""

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str, typer.Argument(help="Folder or Hugging Face name of a model with its tokenizer, or a .gguf file.")
]
TestData = Annotated[Path | None, typer.Option(exists=True, help="Texts to measure on; default: --data.")]
Attention = Annotated[str, typer.Option(help="lln_diag, lln or lln_near_far.")]
BlockSize = Annotated[int, typer.Option(min=1, help="Block size of lln_diag and lln_near_far.")]
Neighbours = Annotated[int, typer.Option(min=0, help="lln_near_far: blocks on each side that count as near.")]
FirstTokens = Annotated[int, typer.Option(min=0, help="lln_near_far: first tokens that always count as near.")]
MaxLength = Annotated[int, typer.Option(min=8, help="Cut texts after this many tokens.")]
Join = Annotated[
    int, typer.Option(min=0, help="Join lines to texts of about this many characters; 0: one text per line.")
]
Threads = Annotated[int, typer.Option(min=0, help="CPU threads; 0 leaves the choice to torch.")]
