"""Which forward call is being recomputed: a memory of the calls that gradient checkpointing may run again.

Checkpointing runs a forward pass a second time inside the backward pass. By then, statistics that every call updates have
changed. Each call is therefore recorded with a number drawn from torch's CPU generator and with a fingerprint of its
inputs, and a recomputation gets what the call of the same number used. Checkpointing restores the generator
(preserve_rng_state, the default), so the same number is drawn again on any device, in any order of recomputation. Without
that, the fingerprint decides, which reads values back from a GPU. If neither identifies the call, an error is raised.

Memory is bounded: calls outside of any checkpoint are not recorded, recomputed ones are soon dropped, and of calls that are
never recomputed the last `MOST_CALLS` are kept.
"""

import itertools
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_CALLS = 1024
RECOMPUTED_CALLS = 64  # kept for a second backward pass through the same graph
_CLOSE = 1e-4  # between the same inputs computed twice, by another order of summation; new inputs are further away


@dataclass
class _Call:
    number: int
    fingerprint: Tensor
    used: Tensor
    recomputed: bool = False


class ForwardCalls:
    """The calls of one module, for operators to find by `handle`: a compiled graph passes on tensors, not objects.

    As a tensor the handle is no constant of the graph, so layers compiled one by one share their graph.
    """

    def __init__(self) -> None:
        self._pending: deque[_Call] = deque(maxlen=MOST_CALLS)
        self._recomputed: deque[_Call] = deque(maxlen=RECOMPUTED_CALLS)
        self._recomputing = False  # since the last forward call
        number = next(_handles)
        self.handle = torch.tensor(number, device="cpu")
        _by_handle[number] = self

    def __len__(self) -> int:
        return len(self._pending) + len(self._recomputed)

    @staticmethod
    def of(handle: Tensor) -> "ForwardCalls":
        return _by_handle.get(int(handle), _of_nobody)

    def record(self, number: int, fingerprint: Callable[[], Tensor], used: Tensor) -> None:
        """A forward call, and what it used. Backward passes before it have ended."""
        if self._recomputing:
            self._recomputing = False
            self._recomputed.extend(call for call in self._pending if call.recomputed)
            self._pending = deque((call for call in self._pending if not call.recomputed), maxlen=self._pending.maxlen)
        if _may_be_recomputed():
            self._pending.append(_Call(number, fingerprint(), used))

    def used_by(self, number: int, fingerprint: Tensor) -> Tensor:
        """What the call used that is now recomputed."""
        self._recomputing = True
        groups = [[call for call in calls if call.used.device == fingerprint.device] for calls in self._all()]
        numbered = [[call for call in group if call.number == number] for group in groups]
        for among in (numbered, groups):
            for candidates in filter(None, among):
                if among is numbered and len(candidates) == 1:
                    # the ordinary case: nothing is read back, on a GPU the check is made when the device gets there
                    torch._assert_async(_close(candidates[0].fingerprint, fingerprint), _OTHER_INPUTS)
                    return _again(candidates[0])
                same = _same(candidates, fingerprint)
                if same and all(torch.equal(call.used, same[0].used) for call in same):
                    return _again(same[0])
                if same:
                    raise RuntimeError(_AMBIGUOUS)
        raise RuntimeError(_UNKNOWN)

    def _all(self) -> tuple[deque[_Call], deque[_Call]]:
        return self._pending, self._recomputed


def _again(call: _Call) -> Tensor:
    call.recomputed = True
    return call.used.clone()


def _may_be_recomputed() -> bool:
    """Both kinds of checkpointing show: one runs forward without gradients, the other under hooks for saved tensors."""
    top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return not torch.is_grad_enabled() or top_hooks is None or top_hooks(True) is not None


def _same(calls: list[_Call], fingerprint: Tensor) -> list[_Call]:
    """Those whose inputs were the same to the bit, or, where there are none, nearly."""
    wanted = fingerprint.nan_to_num()
    exactly = [call for call in calls if torch.equal(call.fingerprint.nan_to_num(), wanted)]
    return exactly or [call for call in calls if bool(_close(call.fingerprint, fingerprint))]


def _close(one: Tensor, other: Tensor) -> Tensor:
    one, other = one.nan_to_num(), other.nan_to_num()
    return (one - other).abs().amax() <= _CLOSE * other.abs().amax()


_handles = itertools.count()
_by_handle: weakref.WeakValueDictionary[int, ForwardCalls] = weakref.WeakValueDictionary()
_of_nobody = ForwardCalls()  # of a graph that was exported in training mode and outlives its module

_ADVICE = (
    "Checkpointing must repeat the forward pass as it was: with preserve_rng_state=True, in training mode, on the same "
    "inputs. Where that cannot be, use a MomentMatcher with mode='fixed' or 'learnable'"
)
_UNKNOWN = (
    "running statistics were asked for inside a backward pass, and none of the forward calls on record "
    f"(the last {MOST_CALLS} of this layer) had these inputs, so it is not known which statistics that call used. {_ADVICE}"
)
_AMBIGUOUS = (
    "several forward calls had the inputs that are recomputed here, but used different running statistics, and the "
    f"random generator does not tell them apart: was it seeded between the calls, or not restored? {_ADVICE}"
)
_OTHER_INPUTS = f"the forward pass was recomputed on other inputs than the first time. {_ADVICE}"
