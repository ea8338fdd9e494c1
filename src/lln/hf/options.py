"""`model.config.lln`: what a model's LLN attention is to do. A plain dictionary in the config, so it is saved with it.

>>> options = LLNOptions(block_size=32)
>>> LLNOptions.from_dict(options.to_dict()) == options
True
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from lln.conversion.parameters import LayerShape
from lln.matching import DEFAULT_TARGET, TARGETS

VERSION = 2  # version 1 knew no far_weight: LLN had the weight `mix` in every row
NEAR_FAR = "lln_near_far"
ATTENTIONS = (
    "lln",
    "lln_diag",
    NEAR_FAR,
)  # those that read these options and keep a state; the zoo's members do neither


@dataclass(frozen=True)
class LLNOptions:
    """Options of `lln`, `lln_diag` and `lln_near_far`.

    version: version of this schema.
    attention: implementation with which a converted model is loaded; None leaves it to the caller.
    target: what moment matching matches: 'entropy', 'variance' or 'paper'.
    block_size: block size of LLN+Diag and near-far attention.
    mix: LLN+Diag: weight of the LLN branch.
    far_weight: scale mix by min(1, f / block_size), where f is the number of keys a row sees outside its block. A text within
        one block is then exact softmax. False uses mix in every row, as the paper and version 1 do.
    neighbours, first_tokens, weights: near-far attention, as in `near_far_attention`. weights are four numbers for all
        heads; a converted model has its own.
    subtract_mean_key: per sample in bidirectional models; in causal models the mean key comes from `convert`. Near-far
        attention always subtracts it when it matches alpha and beta to the sample.
    alpha, beta: fixed values: a number, or one per query head and key head. None: matched to each sample, or taken from the
        parameters that `convert` attached. Causal models need one or the other.
    layers: shape of each attention module of a converted model, in order; None where softmax is kept.
    """

    version: int = VERSION
    attention: str | None = None
    target: str = DEFAULT_TARGET
    block_size: int = 64
    mix: float = 0.5
    far_weight: bool = True
    neighbours: int = 0
    first_tokens: int = 0
    weights: list[float] | None = None
    subtract_mean_key: bool = False
    alpha: float | list[float] | None = None
    beta: float | list[float] | None = None
    layers: list[LayerShape | None] | None = None

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"config.lln has version {self.version!r}; this release reads versions 1 to {VERSION}")
        if self.target not in TARGETS:
            raise ValueError(
                f"config.lln['target'] must be one of {', '.join(map(repr, TARGETS))}, got {self.target!r}"
            )
        if not isinstance(self.block_size, int) or self.block_size < 1:
            raise ValueError(f"config.lln['block_size'] must be a whole number of at least 1, got {self.block_size!r}")
        for name in ("neighbours", "first_tokens"):
            given = getattr(self, name)
            if not isinstance(given, int) or isinstance(given, bool) or given < 0:
                raise ValueError(f"config.lln[{name!r}] must be a whole number of at least 0, got {given!r}")
        if self.weights is not None and not (
            isinstance(self.weights, (list, tuple)) and len(self.weights) == 4 and all(map(_is_number, self.weights))
        ):
            raise ValueError(
                f"config.lln['weights'] must be four numbers, of near, LLN, mean and slope, got {self.weights!r}"
            )
        if not isinstance(self.far_weight, bool):
            raise ValueError(f"config.lln['far_weight'] must be True or False, got {self.far_weight!r}")
        if not _is_number(self.mix) or not 0.0 <= self.mix <= 1.0:
            raise ValueError(f"config.lln['mix'] must be a number from 0 to 1, got {self.mix!r}")
        if (self.alpha is None) != (self.beta is None):
            raise ValueError(
                f"config.lln needs alpha and beta together or neither, got alpha={self.alpha!r}, beta={self.beta!r}"
            )
        for name in ("alpha", "beta"):
            _check_scale(name, getattr(self, name))

    def to_dict(self) -> dict[str, Any]:
        """What goes into the config: only what differs from the defaults, and the version."""
        given = asdict(self)
        defaults = {f.name: f.default for f in fields(self)}
        return {n: x for n, x in given.items() if n == "version" or x != defaults[n]}

    @staticmethod
    def from_dict(given: Any) -> "LLNOptions":
        """What `to_dict` gave, of this version or an older one; what it does not know is refused."""
        if not isinstance(given, dict):
            hint = "; LLNOptions(...).to_dict() is one" if isinstance(given, LLNOptions) else ""
            raise TypeError(
                f"config.lln must be a dictionary of options, since it is saved as JSON; got {type(given).__name__}{hint}"
            )
        unknown = [name for name in given if name not in _NAMES]
        if unknown:
            raise ValueError(f"config.lln has no option {', '.join(map(repr, unknown))}; it has: {', '.join(_NAMES)}")
        if given.get("version") == 1:  # what was saved before keeps what it was trained with
            given = {"far_weight": False, **given, "version": VERSION}
        layers = given.get("layers")
        if layers is not None:
            layers = [x if x is None or isinstance(x, LayerShape) else LayerShape(**x) for x in layers]
        return LLNOptions(**{**given, "layers": layers})


_NAMES = tuple(f.name for f in fields(LLNOptions))  # read here, since compiled graphs cannot


def options_of(config: Any) -> LLNOptions:
    """The options in a model's config, or the defaults; without `layers`, which only construction needs."""
    given = getattr(config, "lln", None)
    if given is None:
        return LLNOptions()
    if isinstance(given, dict):
        given = {name: x for name, x in given.items() if name != "layers"}
    return LLNOptions.from_dict(given)


def is_converted(config: Any) -> bool:
    """Whether config.lln describes modules with parameters of their own."""
    given = getattr(config, "lln", None)
    return isinstance(given, dict) and given.get("layers") is not None


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def _check_scale(name: str, given: Any) -> None:
    numbers = given if isinstance(given, (list, tuple)) else [given]
    if given is not None and not (numbers and all(_is_number(x) and 0 < x < math.inf for x in numbers)):
        raise ValueError(
            f"config.lln[{name!r}] must be a positive, finite number or a list of one for each head, got {given!r}"
        )
