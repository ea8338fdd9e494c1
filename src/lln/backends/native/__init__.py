"""LLN attention on the CPU: a compiled kernel that keeps features in registers and the d x d state in cache.

`OPERATOR` is the backend's operator (see `lln.backends.operator`); `available` and `supports` say in words why it cannot be
used; `moments` is the single pass over q or k that statistics need, and `match` goes from q and k to alpha and beta.
"""

from lln.backends.native.kernels import available, backward, forward, supports
from lln.backends.native.statistics import match, moments
from lln.backends.operator import define

OPERATOR = define("native", forward, backward)

__all__ = ["OPERATOR", "available", "backward", "forward", "match", "moments", "supports"]
