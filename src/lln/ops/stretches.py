"""The place where operations learn that their tensors are only a stretch of a sequence that several processes hold.

Nothing here communicates. `lln.parallel` says which processes hold the sequence (`held_by`) and provides, for each operation, a
form that works over them (`form_of`); an operation that is called meanwhile asks for that form. Its own work on a process,
`alone`, is done by the ordinary operations.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_FORMS: dict[str, Callable[..., Any]] = {}
_holders: Any = None  # not a context variable: backward passes, and what they recompute, may run in other threads


def holders() -> Any:
    """The processes that hold the sequence, as `lln.parallel` describes them, or None: this one alone."""
    return _holders


@contextmanager
def held_by(processes: Any) -> Iterator[None]:
    """Inside, tensors are this process's stretch of a sequence; None: the whole of it."""
    global _holders
    before, _holders = _holders, processes
    try:
        yield
    finally:
        _holders = before


def register(name: str, form: Callable[..., Any]) -> None:
    """`form(processes, *arguments)` computes the operation `name` over the processes."""
    _FORMS[name] = form


def form_of(name: str) -> Callable[..., Any] | None:
    """What computes the operation over the processes, or None where this one has the whole sequence."""
    if _holders is None:
        return None
    if name not in _FORMS:
        raise NotImplementedError(f"{name} does not work on a sequence that is cut over several processes")
    form, processes = _FORMS[name], _holders

    def over_processes(*arguments: Any, **options: Any) -> Any:
        with held_by(None):
            return form(processes, *arguments, **options)

    return over_processes


def own_boundaries(cu_seqlens: Any, length: int) -> Any:
    """The boundaries of packed sequences in this process's `length` tokens; as they are where it has the whole."""
    derive = None if cu_seqlens is None else form_of("boundaries")
    return cu_seqlens if derive is None else derive(cu_seqlens, length)
