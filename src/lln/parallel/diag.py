"""LLN+Diag over a sequence that several processes hold: LLN's states travel while the blocks are computed."""

from lln.ops.diag import Operands
from lln.ops.diag.both import mixed
from lln.ops.diag.op import Results
from lln.parallel.attention import Begun
from lln.parallel.blocks import agreed_blocks_over
from lln.parallel.processes import Processes


def diag_over(processes: Processes, x: Operands, backend: str) -> Results:
    """The results of this process's stretch."""
    begun = Begun(processes, x.lln, backend, x.block_size)
    near = agreed_blocks_over(processes, x.blocks, backend)
    far = begun.finish()
    out = mixed(near, far.out, x.weight, x.q)
    return Results(out, far.out if x.keep_branch else x.q.new_empty(0), *far.state)
