"""LLN+Diag as one operation, and its backends."""

from lln.ops.diag.both import both
from lln.ops.diag.native import NATIVE
from lln.ops.diag.op import Operands, Results, diag

diag.backends.register(NATIVE)
diag.backends.register(both("triton"))
diag.backends.register(both("chunked", transparent=True))
diag.backends.register(both("oracle", automatic=False, transparent=True, by_autograd=True))

__all__ = ["Operands", "Results", "diag"]
