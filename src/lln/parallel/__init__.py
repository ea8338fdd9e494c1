"""One sequence over many devices, exactly: each process of a group holds a stretch of it."""

from lln.ops import stretches
from lln.parallel.attention import attention_over
from lln.parallel.blocks import blocks_over
from lln.parallel.context import context_parallel
from lln.parallel.cutting import gather, shard, stretch_lengths
from lln.parallel.diag import diag_over
from lln.parallel.gradients import sum_gradients
from lln.parallel.open_blocks import continue_blocks_over
from lln.parallel.packed import own_boundaries

stretches.register("attention", attention_over)
stretches.register("blocks", blocks_over)
stretches.register("open blocks", continue_blocks_over)
stretches.register("diag", diag_over)
stretches.register("boundaries", own_boundaries)

__all__ = ["context_parallel", "gather", "shard", "stretch_lengths", "sum_gradients"]
