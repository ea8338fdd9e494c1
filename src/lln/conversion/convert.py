"""Any torch model made linear, in closed form: no gradient step, the model's own weights untouched.

The model runs on a few batches, as it is, and is watched. Each place that computes softmax attention (`lln.conversion.sites`)
gets

    1. alpha, beta and the mean key of each head, matched to its queries and keys
    2. four weights a head, by least squares to softmax's own output                        (`lln.near_far.fit`)

From then on the calls go to a linear attention. A member of the zoo can take its place; those with learned weights start as
their papers start them, and want training (`lln.conversion.distil`). Whatever cannot be replaced stays softmax, and the report
says why.
"""

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from lln.conversion.call import AttentionCall
from lln.conversion.linear_site import NEAR_FAR, AnySite, LinearSite, Rerouted, SiteOptions
from lln.conversion.parameters import LayerShape
from lln.conversion.pooled_statistics import PooledStatistics
from lln.conversion.sets import set_parts
from lln.conversion.sites import Site, watching
from lln.conversion.torch_attention import open_up, put
from lln.conversion.zoo_site import ZooSite, check_member, why_not
from lln.matching import match_statistics, shape_for_attention
from lln.near_far.fit import NearFarFit, near_far_parts

NAME = "lln_sites"  # the attribute of a converted module that holds its sites
RESTING = "_lln_rests"  # and the one that says that it computes softmax for the time being


@dataclass
class Converted:
    """What became of each attention of a model; `lln.unload` gives the model back as it was."""

    replaced: dict[str, float | None] = field(
        default_factory=dict
    )  # error of the output over its power, on the calibration data
    kept: dict[str, str] = field(default_factory=dict)  # softmax still, and why

    def __str__(self) -> str:
        lines = [
            f"{place}: linear" + ("" if error is None else f", error {error:.3f} of the output's power")
            for place, error in self.replaced.items()
        ]
        return "\n".join([*lines, *(f"{place}: softmax, {why}" for place, why in self.kept.items())])


def convert(
    model: nn.Module,
    calibrate: Any,
    *,
    attention: str = NEAR_FAR,
    block_size: int = 64,
    neighbours: int = 0,
    first_tokens: int = 0,
    options: Mapping[str, Any] | None = None,
    keep_softmax: Iterable[str] = (),
) -> Converted:
    """Replace the softmax attention of any torch model by a linear one, in place; the report says what was replaced.

    calibrate: batches to watch the model on: an iterable of what it takes (a tensor, a tuple of arguments, or a dictionary of
        named ones), or a function that runs the model. Lengths and masks should be those the model will see.
    attention: 'lln_near_far', fitted in closed form, or a member of the zoo, such as 'hedgehog' or 'lln_diag'.
    block_size, neighbours, first_tokens: what stays exact, as in `near_far_attention`.
    options: of a member of the zoo, by name.
    keep_softmax: names of modules to leave as they are.

    Attention is found where `scaled_dot_product_attention` or `nn.MultiheadAttention` computes it, in torch's own transformer
    layers as well. Hugging Face models have caches, packed sequences and a config to be saved with: see `lln.hf.convert`.
    """
    _refuse_unsuitable(model)
    near = {"block_size": block_size, "neighbours": neighbours, "first_tokens": first_tokens}
    of_site = near if attention == NEAR_FAR else _of_member(attention, options or {}, near)
    if attention == NEAR_FAR and options:
        raise ValueError(f"options are of a member of the zoo; {NEAR_FAR} has block_size, neighbours and first_tokens")
    runs = _as_runs(calibrate)
    before, closed = open_up(model)
    try:
        statistics, seen, refused = _watch_statistics(model, runs)
        if attention != NEAR_FAR:
            seen = {site: replace(found, **of_site) for site, found in seen.items()}
            refused |= {site: why for site, found in seen.items() if (why := why_not(found)) is not None}
        report = Converted(kept=closed)
        chosen = _chosen(seen, refused, set(keep_softmax), report)
        if not chosen:
            reasons = "; ".join(f"{place}: {why}" for place, why in report.kept.items())
            raise ValueError(
                "nothing in this model can be replaced: "
                + (
                    reasons
                    or "on the calibration data no module called scaled_dot_product_attention or nn.MultiheadAttention"
                )
            )
        sites: dict[Site, AnySite]
        if attention == NEAR_FAR:
            fitted = {
                site: _matched(replace(seen[site], moments=seen[site].cross, **of_site), statistics[site])
                for site in chosen
            }
            sites, errors = {**fitted}, _fit(model, runs, fitted)
        else:
            sites = {site: ZooSite(seen[site]).to(_device(model)) for site in chosen}
            errors = _measure(model, runs, sites)
    except BaseException:
        _close_again(model, before)
        raise
    _install(model, sites, before)
    report.replaced = {str(site): errors.get(site) for site in sites}
    return report


def unload(model: nn.Module) -> nn.Module:
    """The model as it was before `convert`, bit for bit; returns it."""
    before: dict[str, nn.Module] | None = model.__dict__.pop("_lln_before", None)
    if before is None:
        raise ValueError("this model was not converted by lln.convert")
    for module in model.modules():
        if hasattr(module, NAME):
            delattr(module, NAME)
            del module.__dict__["forward"]
    _close_again(model, before)
    return model


def converted_sites(model: nn.Module) -> dict[str, list[AnySite | None]]:
    """The linear attentions of a converted model, by the path of their module and in the order of its calls."""
    found = {}
    for path, module in model.named_modules():
        if hasattr(module, NAME):
            found[path] = _own_sites(module)
    return found


def _own_sites(module: nn.Module) -> list[AnySite | None]:
    return [site if isinstance(site, AnySite) else None for site in getattr(module, NAME)]


def _of_member(name: str, options: Mapping[str, Any], near: dict[str, int]) -> dict[str, Any]:
    """What a site of a member has to know; random features are drawn with a seed, so that they can be drawn again."""
    from lln.zoo import registry

    check_member(name)
    if near != {"block_size": 64, "neighbours": 0, "first_tokens": 0}:
        raise ValueError(f"block_size, neighbours and first_tokens are of {NEAR_FAR}; {name} takes options={{...}}")
    chosen = registry.options(name, **options)
    seed = {"seed": 0} if getattr(chosen, "seed", 0) is None else {}
    return {"attention": name, "of_member": {**options, **seed}}


def _as_runs(calibrate: Any) -> list[Callable[[nn.Module], Any]]:
    if isinstance(calibrate, (Tensor, Mapping, str)):
        hint = (
            f"an attention goes by its name, attention={calibrate!r}"
            if isinstance(calibrate, str)
            else "put it into a list"
        )
        raise TypeError(f"calibrate must be a list of batches, got one {type(calibrate).__name__}: {hint}")
    if callable(calibrate) and not isinstance(calibrate, Iterable):
        return [calibrate]
    runs = [_as_run(batch) for batch in calibrate]
    if not runs:
        raise ValueError("calibrate is empty: give batches to watch the model on")
    return runs


def _as_run(batch: Any) -> Callable[[nn.Module], Any]:
    if isinstance(batch, Mapping):
        return lambda model: model(**batch)
    if isinstance(batch, (tuple, list)):
        return lambda model: model(*batch)
    return lambda model: model(batch)


@torch.no_grad()
def _run_all(model: nn.Module, runs: list[Callable[[nn.Module], Any]]) -> None:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        for run in runs:
            run(model)
    finally:
        for module, training in modes.items():
            module.training = training


def _watch_statistics(
    model: nn.Module, runs: list[Callable[[nn.Module], Any]]
) -> tuple[dict[Site, PooledStatistics], dict[Site, SiteOptions], dict[Site, str]]:
    statistics: dict[Site, PooledStatistics] = {}
    seen: dict[Site, SiteOptions] = {}
    differs: dict[Site, str] = {}

    def watch(site: Site, call: AttentionCall, _: Tensor) -> None:
        shape = LayerShape(call.q.shape[1], call.k.shape[1], call.q.shape[3], near_far=True)
        before = seen.get(site, _NOTHING)
        longest = max(before.longest or 0, call.q.shape[2], call.k.shape[2])
        now = SiteOptions(shape, causal=call.causal, cross=call.cross or before.cross, longest=longest)
        if site in seen and (now.shape, now.causal) != (seen[site].shape, seen[site].causal):
            differs[site] = "its heads or its direction change from call to call"
        seen[site] = now
        statistics.setdefault(site, PooledStatistics()).add(call)

    with watching(model, watch) as watched:
        _run_all(model, runs)
    return statistics, seen, {**watched.refused, **differs}


_NOTHING = SiteOptions(LayerShape(0, 0, 0))


def _chosen(seen: dict[Site, SiteOptions], refused: dict[Site, str], keep: set[str], report: Converted) -> list[Site]:
    unknown = keep - {site.path for site in (*seen, *refused)}
    if unknown:
        there = ", ".join(sorted({site.path for site in seen}))
        raise ValueError(f"keep_softmax names {sorted(unknown)[0]!r}; modules that compute attention are: {there}")
    report.kept = {**{str(site): why for site, why in refused.items()}, **report.kept}  # why it stayed closed says more
    report.kept |= {str(site): "as asked" for site in seen if site.path in keep}
    report.kept |= {
        str(site): "the model computes it outside of any module"
        for site in seen
        if not site.path and site not in refused
    }
    return [site for site in seen if str(site) not in report.kept]


def _matched(options: SiteOptions, pooled: PooledStatistics) -> LinearSite:
    """A site with alpha and beta about the mean key, w = -beta mu."""
    site = LinearSite(options)
    shape, own = options.shape, site.parameters_of_heads
    found = pooled.result(center_keys=True)
    matched = match_statistics(found, shape.head_dim, scale=pooled.scale)
    alpha, beta = shape_for_attention(*matched, shape.heads, torch.float32)
    own.to(alpha.device).set(alpha=alpha[0, :, 0], beta=beta[0, :, 0])
    bias = -own.beta * found.mean_key[0].float()
    own.set(feature_bias=bias.repeat_interleave(shape.heads // shape.key_heads, dim=0))
    return site


def _fit(model: nn.Module, runs: list[Callable[[nn.Module], Any]], sites: dict[Site, LinearSite]) -> dict[Site, float]:
    """The four weights of each head nearest to softmax's output; what is left of the error, over the output's power."""
    fits: dict[Site, NearFarFit] = {}

    def watch(at: Site, call: AttentionCall, out: Tensor) -> None:
        site = sites.get(at)
        if site is None:
            return
        if site.options.cross:
            parts = set_parts(call, site.parameters_of_heads)
            fits.setdefault(at, NearFarFit()).add(out.reshape(*call.q.shape[:3], -1), *parts)
            return
        alpha, beta, bias = site.parameters_of_heads.for_attention(torch.float32)
        near: dict[str, Any] = dict(site.near)
        parts = near_far_parts(
            call.q, call.k, call.v, alpha, beta, feature_bias=bias, key_mask=call.key_mask, is_causal=call.causal,
            scale=call.scale, **near,
        )  # fmt: skip
        fits.setdefault(at, NearFarFit()).add(out.reshape(*call.q.shape[:3], -1), *parts, call.key_mask)

    with watching(model, watch):
        _run_all(model, runs)
    errors = {}
    for at, fit in fits.items():
        weights = fit.weights()
        sites[at].parameters_of_heads.set(weights=weights.float())
        errors[at] = float(fit.error(weights).mean())
    return errors


def _measure(model: nn.Module, runs: list[Callable[[nn.Module], Any]], sites: dict[Site, AnySite]) -> dict[Site, float]:
    """The error of each site's output, over the output's power."""
    sums: dict[Site, list[float]] = {}

    def watch(at: Site, call: AttentionCall, out: Tensor) -> None:
        if at in sites:
            found = call.shaped(sites[at].attend(call))
            now = (float((found - out).square().sum()), float(out.square().sum()))
            sums[at] = [a + b for a, b in zip(sums.get(at, (0.0, 0.0)), now, strict=True)]

    with watching(model, watch):
        _run_all(model, runs)
    return {at: error / max(power, 1e-30) for at, (error, power) in sums.items()}


def _install(model: nn.Module, sites: dict[Site, AnySite], before: dict[str, Any]) -> None:
    by_path: dict[str, dict[int, AnySite]] = {}
    for site, linear in sites.items():
        by_path.setdefault(site.path, {})[site.number] = linear
    for path, own in by_path.items():
        install(model.get_submodule(path), path, [own.get(number) for number in range(max(own) + 1)])
    model.__dict__["_lln_before"] = before


def install(module: nn.Module, path: str, sites: list[AnySite | None]) -> None:
    """Give a module its sites, and a forward pass whose attention goes through them."""
    module.register_module(NAME, nn.ModuleList([nn.Identity() if site is None else site for site in sites]))
    module.forward = types.MethodType(functools.partial(_forward, path), module)  # type: ignore[method-assign]


def _forward(path: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if module.__dict__.get(RESTING):
        return type(module).forward(module, *args, **kwargs)
    with Rerouted(path, _own_sites(module)):
        return type(module).forward(module, *args, **kwargs)


@contextmanager
def softmax_again(model: nn.Module) -> Iterator[None]:
    """Inside, a converted model computes softmax, as before its conversion."""
    modules = [module for module in model.modules() if hasattr(module, NAME)]
    for module in modules:
        module.__dict__[RESTING] = True
    try:
        yield
    finally:
        for module in modules:
            del module.__dict__[RESTING]


def _device(model: nn.Module) -> torch.device:
    return next((x.device for x in model.parameters()), torch.device("cpu"))


def _close_again(model: nn.Module, before: Mapping[str, nn.Module]) -> None:
    for path, module in before.items():
        put(model, path, module)


def _refuse_unsuitable(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert takes a torch.nn.Module, got {type(model).__name__}")
    if "_lln_before" in model.__dict__:
        raise ValueError("this model is converted already: lln.unload(model) gives its softmax back first")
    if isinstance(model, nn.MultiheadAttention):
        raise ValueError(
            "the model is an nn.MultiheadAttention itself: convert the model it is part of, or use lln.NearFarAttention or "
            "lln.LLNDiagAttention in its place"
        )
