"""Is context used? The loss of a trained masked language model when what is far away is taken from it.

    within w    mean over asked tokens i of  -log p(x_i | x_j with |i - j| <= w)
    nearest d   mean over tokens i inside runs of masks, whose nearest visible token is d away, of  -log p(x_i | all visible)

For the first, the window around i is cut out and fed alone, with the positions its tokens have in the text; i is one that the
validation sample shows as the mask. For the second, every so many tokens a run of SPAN is masked, and nothing else. Both are
taken on held-out windows, the same for all models, after the training and apart from it: no other number of a run changes.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from lln_lab.experiments.grid import mean_and_spread
from lln_lab.experiments.masking import PADDING, Masking
from lln_lab.experiments.models.roberta import MaskedLanguageModel
from lln_lab.experiments.training.run import processes
from lln_lab.experiments.training.stream import Held

REACHES = (0, 1, 4, 16, 64)  # tokens on either side
WINDOWS, ASKED = 128, 8  # so many held-out windows at most, and so many tokens of each
SPAN, EVERY = 7, 32  # runs of masks: a token in the middle of one is four from the nearest that is visible
TOKENS = 8192  # at once
WHOLE = "all"


def noted(
    found: dict[str, Any], folder: Path, build: Callable[[], MaskedLanguageModel], held_out: Tensor, masking: Masking
) -> dict[str, Any]:
    """A run's result with its context, measured with the weights of its last step where the folder still has them."""
    places = (folder / name / "model.safetensors" for name in ("model", f"checkpoint-{found['steps']}"))
    weights = next((place for place in places if place.exists()), None)
    if "context" in found or weights is None:
        return found
    with torch.random.fork_rng():
        torch.manual_seed(found["seed"])  # as the run did: random features are drawn
        model = build()
    load(model, weights)
    return {**found, "context": measured(model.to(processes().device).eval(), held_out, masking)}


def load(model: MaskedLanguageModel, weights: Path) -> None:
    """What a run saved; a weight that it lacks would leave a number that was drawn."""
    stored = load_file(weights)
    model.load_state_dict(stored, strict=False)
    if absent := sorted(
        {name for name, _ in model.named_parameters()} - set(stored)
    ):  # tied weights have one name here
        raise ValueError(f"{weights} has no {', '.join(absent)}: it is of another model")


@torch.no_grad()
def measured(model: MaskedLanguageModel, held_out: Tensor, masking: Masking) -> dict[str, Any]:
    """Nats per token: {"asked", "within": {"0", "1", …, "all"}, "nearest": {"1", "2", …}}."""
    device = next(model.parameters()).device
    samples = Held(held_out[:WINDOWS], masking)  # type: ignore[arg-type]
    drawn = [samples[i] for i in range(len(samples))]
    ids, labels = (torch.stack([x[name] for x in drawn]).to(device) for name in ("input_ids", "labels"))
    rows, places = asked(ids == masking.mask)
    wanted, length = labels[rows, places], ids.shape[1]

    def within(reach: int) -> float:
        return float(torch.cat([
            F.cross_entropy(_around(model, ids[r], p, reach), y, reduction="none")
            for r, p, y in _pieces((rows, places, wanted), 2 * reach + 1)
        ]).mean())  # fmt: skip

    whole = hidden_states(model, ids)[rows, places]
    losses = {str(reach): within(reach) for reach in REACHES if 2 * reach < length}
    losses[WHOLE] = float(F.cross_entropy(model.lm_head(whole).float(), wanted))
    return {
        "asked": len(wanted),
        "within": losses,
        "nearest": nearest(model, held_out[:WINDOWS].to(device), masking.mask),
    }


def asked(shown: Tensor) -> tuple[Tensor, Tensor]:
    """Of the tokens shown as the mask (R, N), ASKED of each row, evenly spread: (T,) rows, (T,) places."""
    rows, places = [], []
    for row, own in enumerate(shown):
        there = own.nonzero()[:, 0]
        chosen = there[torch.arange(min(ASKED, len(there))) * len(there) // ASKED] if len(there) > ASKED else there
        rows.append(torch.full_like(chosen, row))
        places.append(chosen)
    return torch.cat(rows), torch.cat(places)


def _around(model: MaskedLanguageModel, ids: Tensor, places: Tensor, reach: int) -> Tensor:
    """(T, vocabulary): logits at `places` (T,) of windows `ids` (T, N), of which only `reach` tokens on either side are fed."""
    index = places[:, None] + torch.arange(-reach, reach + 1, device=ids.device)
    inside = (index >= 0) & (index < ids.shape[1])
    tokens = ids.gather(1, index.clamp(0, ids.shape[1] - 1)).where(inside, PADDING)
    positions = (index + PADDING + 1).where(inside, PADDING)  # RoBERTa's first token has the position after padding's
    hidden = model.roberta(tokens, attention_mask=inside, position_ids=positions).last_hidden_state[:, reach]
    logits: Tensor = model.lm_head(hidden)
    return logits.float()


def nearest(model: MaskedLanguageModel, windows: Tensor, mask: int) -> dict[str, float]:
    """Loss by the distance to the nearest visible token, inside runs of masks."""
    place = torch.arange(windows.shape[1], device=windows.device)
    hidden = ((place - (EVERY - SPAN) // 2) % EVERY < SPAN) & (place > 0)
    distance = (place[:, None] - place[~hidden]).abs().amin(dim=1)[hidden]  # (H,)
    losses = []
    for (ids,) in _pieces((windows,), windows.shape[1]):
        states = hidden_states(model, ids.masked_fill(hidden, mask))[:, hidden]
        logits = model.lm_head(states).float()
        losses.append(
            F.cross_entropy(logits.flatten(0, 1), ids[:, hidden].flatten(), reduction="none").view(len(ids), -1)
        )
    each = torch.cat(losses).mean(dim=0)
    return {str(int(d)): float(each[distance == d].mean()) for d in distance.unique()}


def hidden_states(model: MaskedLanguageModel, ids: Tensor) -> Tensor:
    """(R, N, E) of whole windows."""
    return torch.cat([model.roberta(part).last_hidden_state for (part,) in _pieces((ids,), ids.shape[1])])


def _pieces(tensors: Sequence[Tensor], length: int) -> Iterator[tuple[Tensor, ...]]:
    """Rows of all of them, so many that about TOKENS tokens are computed at once."""
    return zip(*(x.split(max(1, TOKENS // length)) for x in tensors), strict=True)


def table(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the runs that have it; none: []."""
    runs = [r for r in results if "context" in r]
    if not runs:
        return []
    first = runs[0]["context"]
    keys = [("within", key) for key in first["within"]] + [("nearest", key) for key in first["nearest"]]
    rows = []
    for label in dict.fromkeys(r["label"] for r in runs):
        own = [r["context"] for r in runs if r["label"] == label]
        rows.append([label, *(round(mean_and_spread([each[kind][key] for each in own])[0], 3) for kind, key in keys)])
    names = {"within": "within {}", "nearest": "nearest visible {} away"}
    return [
        {
            "title": "Validation loss by context",
            "note": f"Nats per token, mean over seeds. Within w: only w tokens on either side are fed, for {first['asked']:,} "
            f"tokens shown as the mask. Nearest visible: inside runs of {SPAN} masks, by the distance to the nearest token "
            "that is not masked.",
            "columns": ["attention", *(names[kind].format(key) for kind, key in keys)],
            "rows": rows,
        }
    ]
