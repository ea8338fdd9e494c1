"""What the processes of the pool are asked to do."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import lln
import lln.parallel
from lln.ops.blocks import blocks
from lln.ops.diag import diag
from lln.ops.lln import attention as lln_operation
from lln.ops.near_far import near_far
from lln.ops.stretches import held_by, own_boundaries
from lln.parallel.context import processes_of

OPERATIONS = {"attention": lln_operation, "blocks": blocks, "diag": diag, "near_far": near_far}
_kept: dict[str, Any] = {}


def forward(group: Any, payload: dict[str, Any]) -> list[Tensor]:
    """An operation on this stretch; what it was computed from stays here for `backward`."""
    operation, x = OPERATIONS[payload["operation"]], payload["operands"]
    with lln.parallel.context_parallel(group):
        if x.cu_seqlens is not None:
            x = x._replace(cu_seqlens=own_boundaries(x.cu_seqlens, x.k.shape[2]))
        leaves = {n: getattr(x, n).requires_grad_() for n in payload["differentiable"]}
        results = operation(x._replace(**leaves), payload["backend"])
    wanted = [getattr(results, name) for name in payload["results"]]
    _kept.update(leaves=leaves, results=wanted)
    return [t.detach() for t in wanted]


def backward(group: Any, grads: list[Tensor]) -> dict[str, Tensor]:
    """Gradients of the leaves of the last `forward`, by name."""
    leaves = _kept.pop("leaves")
    found = torch.autograd.grad(_kept.pop("results"), list(leaves.values()), grads, allow_unused=True)
    return {n: torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(leaves, found, strict=True)}


def processes(group: Any) -> Any:
    return held_by(processes_of(group))


def match(group: Any, payload: dict[str, Any]) -> list[Tensor]:
    """alpha and beta of the whole, and their gradients by q and k where asked for."""
    q, k, arguments = payload["q"], payload["k"], payload["arguments"]
    wants_gradient = arguments.get("detach") is False
    if wants_gradient:
        q, k = q.requires_grad_(), k.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a table is far off on such inputs is not what is asked here
        alpha, beta = lln.match_moments(q, k, group=group, **arguments)
    if not wants_gradient:
        return [alpha, beta]
    part = (alpha * payload["upstream"]).sum() / dist.get_world_size(group)  # each process has its part of the loss
    return [alpha.detach(), beta.detach(), *torch.autograd.grad(part + beta.sum() * 0, (q, k))]


def door(group: Any, payload: dict[str, Any]) -> dict[str, Tensor]:
    """A public function on this stretch, in two pieces where `split` says where: outputs, final state, gradients."""
    function, arguments = getattr(lln, payload["function"]), dict(payload["arguments"])
    tensors = {n: t.requires_grad_() for n, t in payload["tensors"].items()}
    options = dict(payload.get("options", {}))
    pieces = payload.get("pieces")  # where each piece of the whole begins and ends in this stretch's tensors
    found: dict[str, Tensor] = {}
    with lln.parallel.context_parallel(group):
        if pieces is None:
            out = function(*tensors.values(), **arguments, **options)
        else:
            outs, state = [], None
            replicated = {n: t for n, t in tensors.items() if n not in ("q", "k", "v")}
            for first, last in pieces:
                own = [tensors[n][:, :, first:last] for n in ("q", "k", "v")]
                mask = {} if "key_mask" not in arguments else {"key_mask": arguments["key_mask"][:, first:last]}
                rest = {n: a for n, a in arguments.items() if n != "key_mask"}
                out, state = function(*own, **replicated, **rest, **mask, **options, state=state, return_state=True)
                outs.append(out)
            out = torch.cat(outs, dim=2)
            found |= {f"state.{n}": t.detach() for n, t in state.state_dict().items()}
    loss = (out * payload["upstream"]).sum()
    if pieces is not None:
        loss = loss + sum(
            t.sum() for n, t in state.state_dict().items() if n in payload["through"]
        ) / dist.get_world_size(group)
    grads = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
    found |= {
        f"d{n}": torch.zeros_like(t) if g is None else g for (n, t), g in zip(tensors.items(), grads, strict=True)
    }
    return found | {"out": out.detach()}


def refused(group: Any, payload: None) -> None:
    """Everything that needs the whole sequence; raises what they said, joined."""
    from lln.dense import lln_matrix
    from lln.near_far import near_far_attention
    from lln.zoo import attention

    x = torch.randn(1, 1, 10, 4)
    said = []
    with lln.parallel.context_parallel(group):
        for call in (
            lambda: lln_matrix(x, x, torch.ones(1), torch.ones(1)),
            lambda: near_far_attention(x, x, x, 1.0, 1.0, is_causal=True, return_state=True),
            lambda: lln.lln_attention(x, x, x, 1.0, 1.0, is_causal=True, frame_size=5),
            lambda: attention("softmax")(x, x, x),
            lambda: lln.match_moments(x, x, method="instance"),
        ):
            try:
                call()
            except (NotImplementedError, ValueError) as error:
                said.append(f"{error} (lln.parallel)")
    raise RuntimeError("|".join(said))


def positions(group: Any, own: Tensor) -> None:
    with lln.parallel.context_parallel(group, positions=own):
        pass


def shard_and_gather(group: Any, x: Tensor) -> dict[str, Any]:
    own = lln.parallel.shard(x, 1, group, multiple_of=8).clone().requires_grad_()
    joined = lln.parallel.gather(own, 1, group)
    mask = lln.parallel.gather(own.detach() > 5, 1, group)
    joined.sum().backward()
    return {"joined": joined.detach(), "mask": mask, "gradient": own.grad, "length": own.shape[1]}


from tests.parallel.hf_jobs import hugging_face, trained  # noqa: E402, F401
from tests.parallel.training import example, split, together  # noqa: E402, F401


def traffic(group: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Every collective of a layer, forward and back."""
    from lln.parallel.traffic import Traffic

    q, k, v = (torch.randn(shape).requires_grad_() for shape in payload["shapes"])
    alpha, beta = (torch.full((1, 1, 1, 1), 1.1).requires_grad_() for _ in range(2))
    function = getattr(lln, payload["function"])
    with lln.parallel.context_parallel(group, check=payload["check"]):
        out = function(q, k, v, alpha, beta, is_causal=payload["causal"])  # what is agreed on once
        with Traffic() as forward_traffic:
            out = function(q, k, v, alpha, beta, is_causal=payload["causal"])
        with Traffic() as backward_traffic:
            out.sum().backward()
    return {"forward": [tuple(s) for s in forward_traffic.sent], "backward": [tuple(s) for s in backward_traffic.sent]}


def matching_traffic(group: Any, payload: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Every collective of a call of match_moments."""
    from lln.parallel.traffic import Traffic

    with Traffic() as found:
        lln.match_moments(payload["q"], payload["k"], group=group, key_mask=payload["key_mask"])
    return [tuple(s) for s in found.sent]
