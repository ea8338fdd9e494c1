"""A member of the zoo in place of a softmax attention, and which members can stand there."""

from torch import Tensor

from lln.conversion.call import AttentionCall
from lln.conversion.linear_site import NEAR_FAR, AnySite, LinearSite, SiteOptions
from lln.conversion.zoo_call import answered_by


class ZooSite(AnySite):
    """The mechanism of a member, with its weights if it has any; those of the projections stay the model's own."""

    def __init__(self, options: SiteOptions) -> None:
        super().__init__(options)
        from lln.zoo import registry
        from lln.zoo.mechanism import Shape

        shape, chosen = options.shape, registry.options(options.attention, **options.of_member)
        size = Shape(shape.heads * shape.head_dim, shape.heads, options.longest)
        self.mechanism = registry.member(options.attention).make(chosen, size)
        self.mechanism.requires_grad_(False)  # as all that a conversion adds: until somebody trains it

    def _attend(self, call: AttentionCall) -> Tensor:
        return answered_by(self.mechanism, call)


def make_site(options: SiteOptions) -> AnySite:
    return LinearSite(options) if options.attention == NEAR_FAR else ZooSite(options)


def check_member(name: str) -> None:
    """Refuse what is no function of q, k and v, as a softmax attention is one."""
    from lln.zoo import registry

    reason = unfit(name)
    if reason is not None:
        fitting = ", ".join(n for n in registry.names() if unfit(n) is None)
        raise ValueError(f"{name} {reason}: it cannot be converted to. {NEAR_FAR} can, and of the zoo: {fitting}")


def why_not(options: SiteOptions) -> str | None:
    """Why the member cannot answer what was seen of a site, or None."""
    from lln.zoo import registry
    from lln.zoo.card import refuse_unsupported

    try:
        refuse_unsupported(registry.card(options.attention), options.causal, options.cross)
    except ValueError as reason:
        return str(reason)
    return None


def unfit(name: str) -> str | None:
    """Why a member cannot stand in for any softmax attention, or None."""
    from lln.zoo import registry
    from lln.zoo.mechanism import Mechanism

    kind = registry.member(name).make
    if name == "softmax":
        return "is what the model has"
    if not issubclass(kind, Mechanism):
        return "is a whole layer with projections of its own"
    if kind.shared_qk:
        return "has one projection for queries and keys, and the model has two"
    if kind.needs_inputs:
        return "reads the layer's inputs, and a call of attention has queries, keys and values only"
    return None
