"""One sequence over many devices, exactly: each process of a group holds a stretch of it."""

from lln.ops import stretches
from lln.parallel.attention import attention_over
from lln.parallel.blocks import blocks_over
from lln.parallel.context import context_parallel
from lln.parallel.cutting import gather, mask_of_the_whole, shard
from lln.parallel.diag import diag_over
from lln.parallel.gradients import sum_gradients
from lln.parallel.heads import split_heads
from lln.parallel.matching import FORMS
from lln.parallel.near_far import near_far_over
from lln.parallel.open_blocks import continue_blocks_over
from lln.parallel.packed import own_boundaries

stretches.register("attention", attention_over)
stretches.register("blocks", blocks_over)
stretches.register("open blocks", continue_blocks_over)
stretches.register("diag", diag_over)
stretches.register("near_far", near_far_over)
stretches.register("boundaries", own_boundaries)
stretches.register("mask of the whole", mask_of_the_whole)
for _name, _form in FORMS.items():
    stretches.register(_name, _form)

__all__ = ["context_parallel", "gather", "shard", "split_heads", "sum_gradients"]
