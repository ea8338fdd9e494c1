"""Attentions and tasks by the names a reader knows, on every page and in every picture."""

import re

LABELS = {
    "softmax": "softmax",
    "lln": "LLN",
    "lln_diag": "LLN+Diag",
    "lln_paper": "LLN, the paper's matching",
    "lln_entropy": "LLN, entropy matching",
    "lln_unmatched": "LLN, α = β = 1",
    "relu": "ReLU",
    "quadratic": "quadratic",
    "elu": "ELU + 1",
    "agent": "Agent attention",
    "block_diagonal": "block-diagonal softmax",
    "cosformer": "cosFormer",
    "flash": "FLASH",
    "gated_delta": "gated delta rule",
    "hedgehog": "Hedgehog",
    "linformer": "Linformer",
    "lolcats": "LoLCATs",
    "longformer": "Longformer",
    "mala": "MALA",
    "mhla": "MHLA",
    "near_far": "near-far",
    "nystromformer": "Nyströmformer",
    "performer": "Performer",
    "polaformer": "PolaFormer",
    "reformer": "Reformer",
    "rfa": "RFA",
    "skyformer": "Skyformer",
    "sla": "SLA",
    "tnn": "TNN",
    "transformer_ls": "Transformer-LS",
    "transnormer_t1": "TransNormer T1",
    "transnormer_t2": "TransNormer T2",
}
TASKS = {
    "sst2": "SST-2",
    "qnli": "QNLI",
    "mnli": "MNLI",
    "qqp": "QQP",
    "dogs_vs_cats": "dogs vs cats",
    "cifar10": "CIFAR-10",
    "text": "Text",
    "listops": "ListOps",
    "image": "Image",
    "retrieval": "Retrieval",
    "pathfinder": "Pathfinder",
}
_IN_TEXT = {name: shown for name, shown in LABELS.items() if name != shown}
_ATTENTION = re.compile(r"\b(?:" + "|".join(sorted(_IN_TEXT, key=len, reverse=True)) + r")\b")
_TASK = re.compile(r"(?<=\bon )(?:" + "|".join(TASKS) + r")\b")


def name_of(label: str) -> str:
    """An attention, with its options where it has any: "lln_diag (target=paper)" is "LLN+Diag (target=paper)"."""
    base, _, options = label.partition(" (")
    return LABELS.get(label) or (LABELS.get(base, base) + (f" ({options}" if options else ""))


def task_of(name: str) -> str:
    return TASKS.get(name, name)


def in_sentence(text: str) -> str:
    """The sentence of a claim, with the names of attentions, and of the tasks they are judged on."""
    return _TASK.sub(lambda found: TASKS[found[0]], _ATTENTION.sub(lambda found: _IN_TEXT[found[0]], text))
