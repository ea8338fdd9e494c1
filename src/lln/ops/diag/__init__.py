"""LLN+Diag as one operation, a step of decoding as another, and their backends."""

from lln.ops.diag.both import both
from lln.ops.diag.native import NATIVE, NATIVE_STEP
from lln.ops.diag.op import Operands, Results, diag
from lln.ops.diag.step import StepOperands, StepResults, diag_step, step_of
from lln.ops.diag.triton import TRITON

diag.backends.register(NATIVE)
diag.backends.register(TRITON)
diag.backends.register(both("chunked", transparent=True))
diag.backends.register(both("oracle", automatic=False, transparent=True, by_autograd=True))

diag_step.backends.register(NATIVE_STEP)
diag_step.backends.register(step_of("triton"))
diag_step.backends.register(step_of("chunked", transparent=True, by_autograd=True))
diag_step.backends.register(step_of("oracle", automatic=False, transparent=True, by_autograd=True))

__all__ = ["Operands", "Results", "StepOperands", "StepResults", "diag", "diag_step"]
