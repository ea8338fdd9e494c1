"""`python -m lln_lab.pages.evidence docs` writes docs/evidence.md and its picture from the results in docs/results/evidence."""

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from lln_lab.evidence.first_round import FILES, best_of_the_others, first_round
from lln_lab.evidence.ledger import Entry, Reached, ledger
from lln_lab.evidence.plan import COMPARED, OPPONENT, SEEDS, TIMED, task
from lln_lab.evidence.plot import draw
from lln_lab.evidence.standing import AHEAD, ALIKE, BEHIND, Compared, Standing, in_time_only
from lln_lab.experiments.figure import save
from lln_lab.names import name_of, task_of
from lln_lab.pages.measured import judged as judged_in_words
from lln_lab.pages.tables import markdown, minus

HEAD = """<!-- Made from the JSON in docs/results/evidence by `python -m lln_lab.pages.evidence docs`; do not edit. -->
# Softmax against linear attention, task by task

The same small models, trained from scratch with softmax, LLN, LLN+Diag, [near-far attention](near-far.md) and the best of the
[other linear members](#a-first-round-over-all-members): same data order, budget, initialisation and number of weights but the
few that an attention learns itself, three seeds. Everything ran at CPU size and says nothing about large models.

Numbers in brackets are 95 % intervals of the difference to softmax with the same seed, widened for the number of attentions
compared on a task (Bonferroni). **Ahead** and **behind** mean that the interval excludes zero; everything else is *not
behind*, which with three seeds is a weak statement: look at the width of the interval.
"""
STEPS = (
    "Accuracy in per cent (more is better) or loss in nats (less is better). Below it the gain over softmax; positive is "
    "better in both."
)
ALIKE_TIME = 0.8  # of softmax's: from there on a shorter run of softmax would say little more
TIME = (
    "Softmax trains for the steps that fit into LLN+Diag's CPU time, with a schedule that ends there. The others train as "
    "above; near-far's steps take longer than LLN+Diag's (second table), so it has somewhat more time than softmax. The "
    "converted encoder's softmax trains in near-far's time."
)
STEP_TIMES = (
    f"CPU time of a training step of the whole model on one core, softmax = 1: {TIMED['--steps']} steps of each attention in "
    f"turns on the task's own data, at the beginning of training; the median over {SEEDS} rounds (`lln evidence --time`, "
    "[step_times.json](results/evidence/step_times.json), commands inside). Minutes of the long runs do not compare so well: "
    "they come from several sessions and machines. Where LLN+Diag and near-far take more than "
    f"{ALIKE_TIME} of softmax's time, softmax has no shorter run of its own: it would have nearly as many steps."
)
DOCUMENTS = """## A pretrained encoder on long documents

all-MiniLM-L6-v2, softmax as it is or [converted in closed form](near-far.md#converting-a-pretrained-model) on 16 reviews, then
fine-tuned on IMDb reviews, each read once, and measured on 5,000 test reviews. Positions beyond the encoder's own 512
are stretched, softmax's as well; after 5,000 reviews both are less accurate than with their own positions at 512 tokens.
Compare times within a table: the tables come from machines of different speed. GLUE cannot show this: SST-2 and most of its
texts are shorter than a block of 64 tokens, where all attention is near and exact, and say nothing about far attention."""
SMALL_BLOCKS = """## Where far attention is not enough

The same encoder on GLUE in blocks of 16 tokens instead of 64 (today: `--attention near_far:block_size=16`), so that most of a
pair of sentences is far: converted on 64 texts and fine-tuned for 400 steps, beside its softmax self. QNLI asks whether a
sentence answers a question, for which single words of one have to be found in the other: **both linear attentions are far
behind softmax there.** Single sentences (SST-2) lose less. Make blocks large enough for what has to be compared word by word,
or keep softmax."""
SMALL_BLOCKS_FILE = "glue_blocks_16.json"
LONGER = {  # results of a task beyond its plan's budget: softmax in the time of one of ours alone
    "image_5600.json": "image",
    "listops_5000.json": "listops",
    "imdb_1250.json": "imdb",
}
DOCUMENT_FILES = ("imdb.json", "imdb_1250.json", "imdb_2048.json")
PICTURE = "gains"
ALT = "Gain over softmax on each task with its interval; filled: at equal steps, hollow: at equal time"
WORDS = {AHEAD: "**ahead**", BEHIND: "**behind**", ALIKE: "not behind"}


def verdicts(entries: list[Entry]) -> list[Standing]:
    """Of the tasks with enough seeds and a softmax that has learned."""
    return [entry.standing for entry in entries if entry.standing is not None and not entry.standing.lacks]


def beyond_the_plan(folder: Path) -> list[Standing]:
    """Longer budgets of a task, compared at equal time alone."""
    return [in_time_only(task(name), found) for name, found in _read(folder, LONGER)]


def page(folder: Path) -> str:
    entries = ledger(folder)
    judged, longer = verdicts(entries), beyond_the_plan(folder)
    lines = [
        HEAD,
        *in_short(judged, longer, len(entries)),
        *equal_steps(entries),
        *equal_time(entries, longer),
        *ranks(judged),
    ]
    lines += [
        *learned(entries),
        *without_verdict(entries),
        *documents(folder),
        *small_blocks(folder),
        *short_runs(folder.parent),
        *what_ran(entries),
    ]
    return "\n".join(lines).rstrip() + "\n"


def in_short(judged: list[Standing], longer: list[Standing], planned: int) -> list[str]:
    """How many tasks decide what; nothing is said before a task has three seeds and softmax has learned it."""
    if not judged:
        return [f"No task of {planned} has three seeds yet.", ""]
    lines = [
        "## In short",
        "",
        f"{len(judged)} of {planned} tasks have three seeds and a softmax that has learned.",
        "",
    ]
    for name in COMPARED:
        at_steps = [one for each in judged for one in each.equal_steps if one.attention == name]
        at_time = [one for each in judged for one in each.equal_time if one.attention == name]
        told = f"- **{name_of(name)}**: at equal steps {_counted(at_steps)}"
        lines.append(told + (f"; at equal time {_counted(at_time)}" if at_time else "") + ".")
    for each in longer:
        told = ", ".join(
            f"{name_of(one.attention)} {WORDS[one.outcome]}" for one in each.equal_time if one.outcome in WORDS
        )
        if told and not each.lacks:
            lines.append(f"- **{each.task.title}**, softmax {each.steps:,} in the same time: {told}.")
    return [*lines, "", f"![{ALT}](results/evidence/{PICTURE}.svg)", ""]


def _counted(compared: Iterable[Compared]) -> str:
    outcomes = [one.outcome for one in compared]
    parts = [f"{outcomes.count(what)} {what}" for what in (AHEAD, ALIKE, BEHIND) if what in outcomes]
    return ", ".join(parts) if parts else "not measured"


def equal_steps(entries: list[Entry]) -> list[str]:
    rows = [
        _row(found, found.softmax, found.steps, found.equal_steps) for entry in entries if (found := entry.standing)
    ]
    notes = [f"- {entry.task.title}: {entry.task.note}" for entry in entries if entry.standing and entry.task.note]
    return ["## At equal steps", "", STEPS, "", *_table(rows), *notes, *([""] if notes else [])] if rows else []


def equal_time(entries: list[Entry], longer: list[Standing]) -> list[str]:
    compared = [*(entry.standing for entry in entries), *longer]
    rows = [
        _row(found, *found.softmax_in_time, found.equal_time) for found in compared if found and found.softmax_in_time
    ]
    beyond = {found.task.name for found in longer}
    files = ", ".join(f"[{file}](results/evidence/{file})" for file, name in LONGER.items() if name in beyond)
    told = [f"Beyond the plan's steps: {files}, command inside.", ""] if longer else []
    return ["## At equal time", "", TIME, "", *_table(rows), *told, *step_times(entries, beyond)] if rows else []


def step_times(entries: list[Entry], beyond: set[str]) -> list[str]:
    """How much time a step takes, and which comparisons at equal time are missing: not planned, nor run `beyond` the plan."""
    rows, missing = [], []
    for entry in (each for each in entries if each.step_times):
        times = entry.step_times
        cells = [f"{times[name]:.2f}" if name in times else "–" for name in COMPARED]
        rows.append("| " + " | ".join([entry.task.title, f"{entry.task.length:,}", *cells]) + " |")
        ours = [times[name] for name in ("lln_diag", "near_far") if name in times]
        in_time = entry.standing is not None and entry.standing.softmax_in_time
        if ours and min(ours) <= ALIKE_TIME and not in_time and entry.task.name not in beyond:
            missing.append(entry.task.title)
    if not rows:
        return []
    told = ["", f"Faster, but not compared at equal time: {'; '.join(missing)}."] if missing else []
    head = ["task", "tokens", *map(name_of, COMPARED)]
    return [
        STEP_TIMES,
        "",
        "| " + " | ".join(head) + " |",
        "| --- |" + " ---: |" * (len(head) - 1),
        *rows,
        *told,
        "",
    ]


def _table(rows: list[list[str]]) -> list[str]:
    head = ["task", "tokens", "steps of softmax", "softmax", *map(name_of, COMPARED)]
    return [
        "| " + " | ".join(head) + " |",
        "| --- |" + " ---: |" * (len(head) - 1),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


def _row(found: Standing, softmax: float, steps: int, compared: tuple[Compared, ...]) -> list[str]:
    of = {one.attention: one for one in compared}
    cells = [found.task.title + _lacking(found), f"{found.task.length:,}", f"{steps:,}", f"{softmax:{found.form}}"]
    return cells + [_cell(of[name], found) if name in of else "–" for name in COMPARED]


def _lacking(found: Standing) -> str:
    return f" <br>*{found.lacks[0]}*" if found.lacks else ""


def _cell(one: Compared, found: Standing) -> str:
    outcome = "" if found.lacks or one.outcome not in WORDS else f" {WORDS[one.outcome]}"
    return minus(f"{one.score:{found.form}}<br>{one.gain.told(found.form)}{outcome}")


def ranks(judged: list[Standing]) -> list[str]:
    """Over the tasks with a verdict on each of ours, and over those on which the opponent ran, too."""
    judged = [each for each in judged if each.complete]
    if len(judged) < 2:
        return []
    with_opponent = [each for each in judged if OPPONENT in each.ranks()]
    lines = [
        f"Over the {len(judged)} tasks with a verdict on each of ours, at equal steps, by mean score (1 is best): "
        f"{_mean_ranks(judged)}."
    ]
    if with_opponent and len(with_opponent) < len(judged):
        tasks = ", ".join(each.task.title for each in with_opponent)
        lines += ["", f"With {name_of(OPPONENT)}, where it ran ({tasks}): {_mean_ranks(with_opponent)}."]
    return ["## Mean rank", "", *lines, ""]


def _mean_ranks(judged: list[Standing]) -> str:
    """Of those who ran on all of the tasks, among themselves, best first."""
    names = [name for name in ("softmax", *COMPARED) if all(name in each.ranks() for each in judged)]
    found = [each.ranks(names) for each in judged]
    means = sorted((fmean(each[name] for each in found), name) for name in names)
    return ", ".join(f"{name_of(name)} {mean:.1f}" for mean, name in means)


def learned(entries: list[Entry]) -> list[str]:
    """How far softmax has come in each budget: a comparison before it has learned says nothing."""
    rows = []
    for found in (entry.standing for entry in entries if entry.standing):
        guess, level, form = found.guessing, found.level, found.form
        if guess is None or level is None:
            continue
        way = (found.softmax - guess) / (level - guess)
        cells = [found.task.title, f"{found.steps:,}", *(f"{x:{form}}" for x in (guess, level, found.softmax))]
        rows.append("| " + " | ".join([*cells, f"{100 * way:.0f} %"]) + " |")
    if not rows:
        return []
    return [
        "## Has softmax learned?",
        "",
        "Guessing names the most frequent class, or each token by its frequency. The level is the paper's score of softmax; on "
        "tasks that the paper has no score for it is ours, half a nat below guessing for language models. A verdict asks for "
        "half of the way to the paper's score, and for all of the way to ours.",
        "",
        "| task | steps | guessing | level | softmax | of the way |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *rows,
        "",
    ]


def without_verdict(entries: list[Entry]) -> list[str]:
    """What is known of the tasks that decide nothing, and why they do not."""
    lines = []
    for entry in entries:
        if entry.standing is None:
            shorter = any(one.label.startswith("softmax") for one in entry.reached)
            missing = "softmax has not run for as long as the others" if shorter else "softmax has not run"
            why = "; ".join([missing, ", ".join(map(_told, entry.reached))]) if entry.reached else "nothing has run yet"
        elif entry.standing.lacks:
            why = "; ".join(entry.standing.lacks)
        else:
            continue
        lines.append(f"- **{entry.task.title}**: {why}." + (f" {entry.task.open}" if entry.task.open else ""))
    return ["## Without a verdict", "", *lines, ""] if lines else []


def _told(one: Reached) -> str:
    name = name_of(one.label).removesuffix(f" ({one.steps:,} steps)")
    score = f"{one.score:.3f} nats" if one.unit == "nats" else f"{one.score:.1f} %"
    return f"{name} {score} after {one.steps:,} steps ({_seeds(one.seeds)})"


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def documents(folder: Path) -> list[str]:
    """Accuracy of the converted encoder, with time and memory beside it."""
    found = dict(_read(folder, {name: name for name in DOCUMENT_FILES}))
    if not found:
        return []
    lines = [DOCUMENTS, ""]
    for name, result in found.items():
        (table,) = result["tables"]
        budget = result["settings"]["budget"]
        read = budget["steps"] * budget["batch"]
        cut = f"{read:,} reviews of up to {result['settings']['length']:,} tokens"
        lines += [*markdown({**table, "title": cut}), "", f"[{name}](results/evidence/{name}), command inside.", ""]
    return [*lines, table["note"], ""]


def small_blocks(folder: Path) -> list[str]:
    """A negative result: GLUE in blocks of 16."""
    lines = []
    for name, result in _read(folder, {SMALL_BLOCKS_FILE: SMALL_BLOCKS_FILE}):
        (table,) = result["tables"]
        lines += [SMALL_BLOCKS, "", *markdown(table), "", table["note"], ""]
        lines += [*judged_in_words(result["verdicts"]), f"[{name}](results/evidence/{name}), command inside.", ""]
    return lines


def _read(folder: Path, files: dict[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """What stands for each file that is there, and its content."""
    return [
        (stands_for, json.loads((folder / name).read_text()))
        for name, stands_for in files.items()
        if (folder / name).exists()
    ]


def short_runs(results: Path) -> list[str]:
    """The first round, best first."""
    places = first_round(results)
    if not places:
        return []
    tasks = sorted(places[0].scores)
    best = best_of_the_others(places)
    files = ", ".join(f"[{name}](results/{name})" for name in FILES if (results / name).exists())
    return [
        "## A first round over all members",
        "",
        f"Three tasks of the Long Range Arena, 300 steps, one seed, accuracy in per cent ({files}, commands inside). So few "
        "steps tell who begins faster, and with 1,000 test rows a difference of three points between two attentions can "
        "be chance. The round only chooses an opponent for the long runs: "
        f"the best linear member besides ours is {name_of(best) if best else 'not known yet'}.",
        "",
        "| attention | " + " | ".join(map(task_of, tasks)) + " | mean rank |",
        "| --- |" + " ---: |" * (len(tasks) + 1),
        *(
            f"| {name_of(place.member)} | "
            + " | ".join(f"{place.scores[task]:.1f}" for task in tasks)
            + f" | {place.rank:.1f} |"
            for place in places
        ),
        "",
    ]


def what_ran(entries: list[Entry]) -> list[str]:
    lines = [
        "## What ran, and what is left",
        "",
        "`lln evidence --data DATA` runs what is missing and resumes where it was stopped; "
        f"`--known docs/results/evidence` takes over the runs below. {SEEDS} seeds are planned.",
        "",
        "| task | runs | CPU minutes | minutes per run, softmax and LLN+Diag | command |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for entry in entries:
        each = entry.standing.minutes if entry.standing else {}
        both = ", ".join(f"{each[name]:.1f}" if name in each else "–" for name in ("softmax", "lln_diag"))
        file = f"[{entry.task.title}](results/evidence/{entry.task.name}.json)" if entry.done else entry.task.title
        command = f"`lln {shlex.join(entry.task.command())}`"
        lines.append(f"| {file} | {entry.done} of {entry.planned} | {entry.minutes:,.0f} | {both} | {command} |")
    return [*lines, ""]


if __name__ == "__main__":
    docs = Path(sys.argv[1])
    results = docs / "results" / "evidence"
    (docs / "evidence.md").write_text(page(results))
    if found := verdicts(ledger(results)):
        longer = [each for each in beyond_the_plan(results) if not each.lacks]
        save(draw, {"judged": [*found, *longer]}, results / f"{PICTURE}.png")
