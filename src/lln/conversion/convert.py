"""Any torch model made linear, in closed form: no gradient step, the model's own weights untouched.

The model runs on a few batches, as it is, and is watched. Each place that computes softmax attention (`lln.conversion.sites`)
gets

    1. alpha, beta and the mean key of each head, matched to its queries and keys
    2. four weights a head, by least squares to softmax's own output                        (`lln.near_far.fit`)

From then on the calls go to a linear attention. A member of the zoo can take its place; those with learned weights start as
their papers start them, and want training (`lln.conversion.distil`). Whatever cannot be replaced stays softmax, and the report
says why.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from lln.conversion.calibration import device_of, fit, matched, measure, watch_statistics
from lln.conversion.costly_layers import costliest, costs, how_many
from lln.conversion.errors import floats, relative_error
from lln.conversion.installed import (
    BEFORE,
    close_unused,
    converted_modules,
    install_all,
    remove,
    softmax_again,
    softmax_in,
)
from lln.conversion.linear_site import NEAR_FAR, AnySite, SiteOptions
from lln.conversion.runs import Run, as_runs
from lln.conversion.sites import OUTSIDE, Site, named
from lln.conversion.torch_attention import open_up, put
from lln.conversion.zoo_site import ZooSite, check_member, why_not


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
    keep_softmax: Iterable[str] | str = (),
    softmax_layers: int | None = None,
) -> Converted:
    """Replace the softmax attention of any torch model by a linear one, in place; the report says what was replaced.

    calibrate: batches to watch the model on: an iterable of what it takes (a tensor, a tuple of arguments, or a dictionary of
        named ones), or a function that runs the model. Lengths and masks should be those the model will see.
    attention: 'lln_near_far', fitted in closed form, or a member of the zoo, such as 'hedgehog' or 'lln_diag'.
    block_size, neighbours, first_tokens: what stays exact, as in `near_far_attention`.
    options: of a member of the zoo, by name.
    keep_softmax: names of modules to leave as they are. 'auto' selects the `softmax_layers` modules (default: one in eight)
        whose conversion alone harms the output most.

    Attention is found where `scaled_dot_product_attention` or `nn.MultiheadAttention` computes it, in torch's own transformer
    layers as well. Hugging Face models have caches, packed sequences and a config to be saved with: see `lln.hf.convert`.
    """
    _refuse_unsuitable(model)
    auto, kept = _kept(keep_softmax, softmax_layers)
    near = {"block_size": block_size, "neighbours": neighbours, "first_tokens": first_tokens}
    of_site = near if attention == NEAR_FAR else _of_member(attention, options or {}, near)
    if attention == NEAR_FAR and options:
        raise ValueError(f"options are of a member of the zoo; {NEAR_FAR} has block_size, neighbours and first_tokens")
    runs = as_runs(calibrate)
    before, closed = open_up(model, kept)
    try:
        statistics, seen, refused = watch_statistics(model, runs)
        if attention != NEAR_FAR:
            seen = {site: replace(found, **of_site) for site, found in seen.items()}
            refused |= {site: why for site, found in seen.items() if (why := why_not(found)) is not None}
        report = Converted(kept=closed)
        chosen = _chosen(seen, refused, kept, report)
        if not chosen:
            reasons = "; ".join(f"{place}: {why}" for place, why in report.kept.items())
            raise ValueError(
                "nothing in this model can be replaced: "
                + (
                    reasons
                    or "on the calibration data no module called scaled_dot_product_attention or nn.MultiheadAttention "
                    "(softmax written out by hand is not seen)"
                )
            )
        sites: dict[Site, AnySite]
        if attention == NEAR_FAR:
            fitted = {
                site: matched(site, replace(seen[site], moments=seen[site].cross, **of_site), statistics[site])
                for site in chosen
            }
            sites, errors = {**fitted}, fit(model, runs, fitted)
        else:
            sites = {site: ZooSite(seen[site]).to(device_of(model)) for site in chosen}
            errors = measure(model, runs, sites)
    except BaseException as reason:
        _close_again(model, before)
        _refuse_weights_that_are_read(reason, before)
        raise
    _install(model, sites, before)
    report.replaced = {str(site): errors.get(site) for site in sites}
    if auto:
        try:
            _keep_costliest(model, runs, softmax_layers, list(sites), report)
        except BaseException:
            unload(model)
            raise
    return report


def unload(model: nn.Module) -> nn.Module:
    """The model as it was before `convert`, bit for bit; returns it."""
    before: dict[str, nn.Module] | None = model.__dict__.pop(BEFORE, None)
    if before is None:
        raise ValueError("this model was not converted by lln.convert")
    for module in converted_modules(model).values():
        remove(module)
    _close_again(model, before)
    return model


def _kept(keep_softmax: Iterable[str] | str, softmax_layers: int | None) -> tuple[bool, set[str]]:
    """Whether the costliest keep softmax, and the names of those that do in any case."""
    auto = keep_softmax == "auto"
    if isinstance(keep_softmax, str) and not auto:
        raise ValueError(f"keep_softmax must be 'auto' or a list of names of modules, got {keep_softmax!r}")
    if softmax_layers is not None and not auto:
        raise ValueError("softmax_layers is how many layers keep_softmax='auto' keeps: give both, or neither")
    return auto, set() if auto else set(keep_softmax)


def _keep_costliest(model: nn.Module, runs: list[Run], count: int | None, sites: list[Site], report: Converted) -> None:
    """The error of the model's output is what a layer costs: |o - t|^2 / |t|^2 with it alone converted."""
    modules = converted_modules(model)
    count = how_many(count, len(modules))

    def original(run: Run) -> Any:
        with softmax_again(model):
            out = run(model)
        if not floats(out):
            raise ValueError(
                f"keep_softmax='auto' compares outputs of the model, and calibrate gave {type(out).__name__}: give batches, or "
                "a function that returns what the model returned"
            )
        return out

    def loss(wanted: Any, run: Run) -> Tensor:
        return relative_error(run(model), wanted)

    found = costs(model, list(modules.values()), runs, softmax_in, original, loss)
    paths = list(modules)
    chosen = [paths[i] for i in costliest(found, count)]
    for path in chosen:
        remove(modules[path])
    close_unused(model)
    for place in (str(site) for site in sites if site.path in chosen):
        del report.replaced[place]
        report.kept[place] = "among the costliest layers (keep_softmax='auto')"


def _of_member(name: str, options: Mapping[str, Any], near: dict[str, int]) -> dict[str, Any]:
    """What a site of a member has to know; random features are drawn with a seed, so that they can be drawn again."""
    from lln.zoo import registry

    check_member(name)
    if near != {"block_size": 64, "neighbours": 0, "first_tokens": 0}:
        raise ValueError(f"block_size, neighbours and first_tokens are of {NEAR_FAR}; {name} takes options={{...}}")
    chosen = registry.options(name, **options)
    seed = {"seed": 0} if getattr(chosen, "seed", 0) is None else {}
    return {"attention": name, "of_member": {**options, **seed}}


def _chosen(seen: dict[Site, SiteOptions], refused: dict[Site, str], keep: set[str], report: Converted) -> list[Site]:
    unknown = keep - {site.path for site in (*seen, *refused)}
    if unknown:
        there = ", ".join(sorted({named(site.path) for site in seen}))
        raise ValueError(f"keep_softmax names {sorted(unknown)[0]!r}; modules that compute attention are: {there}")
    report.kept = {**{str(site): why for site, why in refused.items()}, **report.kept}  # why it stayed closed says more
    report.kept |= {str(site): "as asked" for site in (*seen, *refused) if site.path in keep}
    report.kept |= {
        str(site): "no module of the model computes it" for site in seen if site.path == OUTSIDE and site not in refused
    }
    return [site for site in seen if str(site) not in report.kept]


def _install(model: nn.Module, sites: dict[Site, AnySite], before: dict[str, Any]) -> None:
    by_path: dict[str, dict[int, AnySite]] = {}
    for site, linear in sites.items():
        by_path.setdefault(site.path, {})[site.number] = linear
    in_order = {path: [own.get(number) for number in range(max(own) + 1)] for path, own in by_path.items()}
    install_all(model, in_order, before)


def _close_again(model: nn.Module, before: Mapping[str, nn.Module]) -> None:
    for path, module in before.items():
        put(model, path, module)


def _refuse_weights_that_are_read(reason: BaseException, opened: Mapping[str, Any]) -> None:
    """A model that fails on None may have wanted the weights of nn.MultiheadAttention, which are not formed."""
    if opened and isinstance(reason, (AttributeError, TypeError)) and "NoneType" in str(reason):
        raise ValueError(
            f"the model stopped at a None ({reason}). nn.MultiheadAttention gives None in place of its weights, which a linear "
            f"attention never forms: leave those whose weights are read as they are, keep_softmax=[...], of {', '.join(opened)}"
        ) from reason


def _refuse_unsuitable(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert takes a torch.nn.Module, got {type(model).__name__}")
    if BEFORE in model.__dict__:
        raise ValueError("this model is converted already: lln.unload(model) gives its softmax back first")
    if isinstance(model, nn.MultiheadAttention):
        raise ValueError(
            "the model is an nn.MultiheadAttention itself: convert the model it is part of, or use lln.NearFarAttention or "
            "lln.LLNDiagAttention in its place"
        )
