"""Every attention of the paper's tables and several newer ones, under one interface.

>>> import torch, lln.zoo
>>> layer = lln.zoo.build("performer", embed_dim=64, num_heads=4, max_length=128)
>>> layer(torch.randn(2, 100, 64)).shape
torch.Size([2, 100, 64])
>>> elu = lln.zoo.attention("elu")
>>> q = k = v = torch.randn(2, 4, 100, 16)
>>> elu(q, k, v).shape
torch.Size([2, 4, 100, 16])
"""

from lln.zoo.card import Card
from lln.zoo.registry import attention, build, card, names, options

__all__ = ["Card", "attention", "build", "card", "names", "options"]
