"""Registry of forms that can leave torch: an exported graph knows none of this package's operators.

`lln.onnx` provides, for each operation, a form made of torch's own operators alone, without a loop over the length and without
a value that is read back. While a model is captured, an operation that is called asks for that form.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# The forms in use, by the operation's name, or None: operations are operators of their own.
forms: Mapping[str, Callable[[Any], Any]] | None = None


@contextmanager
def made_of(given: Mapping[str, Callable[[Any], Any]]) -> Iterator[None]:
    """Inside, operations are computed by these forms."""
    global forms
    before, forms = forms, given
    try:
        yield
    finally:
        forms = before


def form_of(name: str) -> Callable[[Any], Any]:
    assert forms is not None
    if name not in forms:
        raise NotImplementedError(
            f"lln::{name} has no form that a graph outside of torch can hold; there are forms of {', '.join(forms)}"
        )
    return forms[name]
