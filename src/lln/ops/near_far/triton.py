"""Near exact, far by moments, has no kernels for a GPU: asked for by name, it is refused in words. Plain torch runs there.

Beside LLN's state it carries the centred product of keys and values, D x Dv, and merges both block after block; its rows see
three kinds of keys, whose weights are fitted. That would be a scan over two states and rows over both, forward and back: as
many kernels again as LLN has, for an attention whose use is to follow softmax closely without training.
"""

from lln.ops.backends import Backend
from lln.ops.gpu import environment
from lln.ops.near_far.op import Operands, Results, near_far

REASON = (
    "attention near exactly and far by moments has no Triton kernels (it carries a second state, which is merged block after "
    "block); backend='chunked' is plain torch and runs on a GPU"
)


def forward(x: Operands) -> Results:
    raise NotImplementedError(REASON)  # never reached: whatever is given is refused


def _refuses(x: Operands) -> str | None:
    return REASON


near_far.backends.register(Backend("triton", forward, None, _refuses, environment.unavailable))
