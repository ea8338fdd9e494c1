"""The `lln` command. A package of its own beside `lln`, so that `lln --help` does not import torch, as `lln` does."""

import sys


def main() -> None:
    try:
        from lln_cli.app import app
    except ImportError as missing:
        print(
            f"the lln command needs more than is installed ({missing}): pip install 'lln-attention[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    app()
