"""A progress bar of a distillation: the stage, the steps and the error they are at."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(wanted: bool, steps: int) -> Iterator[Callable[[str, int, list[float]], None]]:
    """A function to call after each step; it does nothing where no bar is wanted."""
    if not wanted:
        yield lambda stage, step, errors: None
        return
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError as missing:
        raise ImportError("a progress bar needs rich: pip install 'lln-attention[cli]', or progress=False") from missing
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("distilling", total=steps)

        def show(stage: str, step: int, errors: list[float]) -> None:
            name = stage.replace("_", " ")
            bar.update(task, advance=1, description=f"{name}, error {sum(errors) / max(1, len(errors)):.4f}")

        yield show
