"""Silences the progress bars and remarks of other libraries; a command shows its own progress."""

import os


def quiet_libraries() -> None:
    """Called before transformers is imported; it leaves alone what the user has set."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from transformers.utils.logging import disable_progress_bar
    except ImportError:
        return
    disable_progress_bar()
