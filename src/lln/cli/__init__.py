"""The `lln` command."""

import sys


def main() -> None:
    try:
        from lln.cli.app import app
    except ImportError as missing:
        sys.exit(f"the lln command needs more than is installed ({missing}): pip install 'lln-attention[cli]'")
    app()
