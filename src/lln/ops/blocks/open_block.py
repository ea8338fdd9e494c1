"""What is left of a sequence at its end, for blocks: the keys and values since the last block boundary."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class OpenBlock:
    """Keys and values of the block that is not full yet; slots from `filled` on hold nothing."""

    keys: Tensor  # (B, Hk, block, D)
    values: Tensor  # (B, Hk, block, Dv)
    counts: Tensor  # (B, block) bool, which slots hold a key that counts
    filled: Tensor  # (B,) int64, how many slots are taken; 0 <= filled < block
    started: Tensor  # (B,) bool, whether a key has counted yet: blocks are counted from the first that does

    @property
    def size(self) -> int:
        """How many slots there are, filled or not."""
        return self.keys.shape[2]

    def check_filled(self) -> None:
        """Refuse a block that says it holds more than it has room for; reads values."""
        if any(not 0 <= filled < self.size for filled in self.filled.tolist()):
            raise ValueError(f"block.filled of the state must be from 0 to {self.size - 1}, got {self.filled.tolist()}")

    def with_token(self, k: Tensor, v: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor, "OpenBlock"]:
        """Keys, values and which of them count, with one more of each (B, Hk, 1, D), (B, 1); and the block open after it."""
        slot = self.filled[:, None]  # (B, 1)
        keys, values = (
            whole.scatter(2, slot[:, None, :, None].expand_as(x), x) for whole, x in ((self.keys, k), (self.values, v))
        )
        seen = self.counts.scatter(1, slot, counts)
        started = self.started | counts[:, 0]
        taken = self.filled + started
        is_open = taken < self.size  # else the next token starts an empty block
        return keys, values, seen, OpenBlock(keys, values, seen & is_open[:, None], taken * is_open, started)
