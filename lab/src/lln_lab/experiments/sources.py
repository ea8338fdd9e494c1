"""Where every hyper-parameter of `--preset paper` comes from: the paper, the recipe of the code base it names, or us.

A row is (value, origin, source). The value stands here a second time on purpose: a test compares it with the preset's, so that
neither can change without the other. docs/presets.md is made from these rows by `python -m lln_lab.pages.presets docs`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from lln_lab.experiments import fig8, fig9, fig10b, gaussian, imdb, length, lra, table1, table3

PAPER, RECIPE, OURS = "the paper", "the recipe", "ours"
PRE = "fairseq, examples/roberta/config/pretraining/base.yaml"
READ_PRE = "fairseq, examples/roberta/README.pretraining.md"
GLUE = "fairseq, examples/roberta/README.glue.md"
SKY, SKY_MAIN = "Skyformer, code/config.py", "Skyformer, code/main.py"
DOGS = "vit-pytorch, examples/cats_and_dogs.ipynb"
DEIT, DEIT_MODEL = "DeiT, main.py", "DeiT, models.py, deit_tiny_patch16_224"
NOTED = "logging only; weights do not depend on it"
UNUSED = "not used at this precision"
NO_ACCUMULATION = "the recipe computes a step at once; --accumulate changes it"
Row = tuple[Any, str, str]

ALWAYS: dict[str, Row] = {"budget.checkpointing": (False, OURS, "memory only; --checkpointing changes it")}
FLOAT32: dict[str, Row] = {
    "budget.loss_scale": (65536.0, OURS, UNUSED),
    "budget.loss_scale_window": (2000, OURS, UNUSED),
}


def _noted(prefix: str = "budget.", **every: int | None) -> dict[str, Row]:
    return {f"{prefix}{name}_every": (value, OURS, NOTED) for name, value in every.items()}


FINE_TUNING: dict[str, dict[str, Any]] = {
    "qnli": {"steps": 33_112, "warmup": 1_986},
    "qqp": {"steps": 113_272, "warmup": 28_318},
    "sst2": {"steps": 20_935, "warmup": 1_256},
    "rte": {"steps": 2_036, "warmup": 122, "batch": 16, "learning_rate": 2e-5},
    "mrpc": {"steps": 2_296, "warmup": 137, "batch": 16},
    "cola": {"steps": 5_336, "warmup": 320, "batch": 16},
    "stsb": {"steps": 3_598, "warmup": 214, "batch": 16, "learning_rate": 2e-5},
}

ROWS: dict[str, dict[str, Row]] = {
    "fig8": {
        **ALWAYS,
        **_noted(log=100, evaluate=1_000, save=1_000, watch=1_000),
        "size.layers": (12, PAPER, "RoBERTa-base (A.8.1)"),
        "size.width": (768, PAPER, "RoBERTa-base"),
        "size.heads": (12, PAPER, "RoBERTa-base"),
        "size.feed_forward": (3072, PAPER, "RoBERTa-base"),
        "size.length": (512, RECIPE, f"{PRE}: tokens_per_sample"),
        "size.dropout": (0.1, RECIPE, f"{PRE}: dropout"),
        "budget.steps": (125_000, RECIPE, f"{PRE}: max_update"),
        "budget.batch": (2048, RECIPE, f"{READ_PRE}: 16 samples, 16 times, on 8 GPUs; what its rate is for"),
        "budget.accumulate": (16, RECIPE, f"{PRE}: update_freq; on one GPU --accumulate 128 for 16 at a time"),
        "budget.learning_rate": (5e-4, RECIPE, f"{PRE}: lr"),
        "budget.warmup": (10_000, RECIPE, f"{PRE}: warmup_updates"),
        "budget.schedule": ("polynomial", RECIPE, f"{PRE}: polynomial_decay, of power one to zero"),
        "budget.weight_decay": (0.01, RECIPE, f"{PRE}: weight_decay"),
        "budget.adam_beta2": (0.98, RECIPE, f"{PRE}: adam_betas"),
        "budget.adam_epsilon": (1e-6, RECIPE, f"{PRE}: adam_eps"),
        "budget.clip": (0.0, RECIPE, f"{PRE}: clip_norm"),
        "budget.clip_value": (0.0, RECIPE, f"{PRE}: clips nothing"),
        "budget.precision": ("float16", PAPER, "FP16 (A.8.1)"),
        "budget.loss_scale": (128.0, RECIPE, "fairseq, dataclass/configs.py: fp16_init_scale = 2^7"),
        "budget.loss_scale_window": (128, RECIPE, "fairseq, optim/fp16_optimizer.py: 2^14 / 8 GPUs / update_freq"),
        "vocabulary": (50_265, RECIPE, "RoBERTa's dictionary; with --tokenizer its own BPE"),
        "validation_rows": (10_000, OURS, "all windows of WikiText-103's validation text"),
        "contestants": (("softmax", "lln", "lln_diag"), PAPER, "Figure 8 has the first two; LLN+Diag is ours"),
        "seeds": (1, PAPER, "one curve each in Figure 8; a verdict needs three"),
    },
    "table1": {
        **ALWAYS,
        **_noted(log=100, evaluate=1_000, save=1_000, watch=None),
        "budget.steps": (123_873, RECIPE, f"{GLUE}: MNLI"),
        "budget.batch": (32, RECIPE, f"{GLUE}: max-sentences"),
        "budget.accumulate": (1, RECIPE, NO_ACCUMULATION),
        "budget.learning_rate": (1e-5, RECIPE, f"{GLUE}: lr"),
        "budget.warmup": (7_432, RECIPE, f"{GLUE}: MNLI"),
        "budget.schedule": ("polynomial", RECIPE, f"{GLUE}: polynomial_decay"),
        "budget.weight_decay": (0.1, RECIPE, GLUE),
        "budget.adam_beta2": (0.98, RECIPE, GLUE),
        "budget.adam_epsilon": (1e-6, RECIPE, GLUE),
        "budget.clip": (0.0, RECIPE, GLUE),
        "budget.clip_value": (0.0, RECIPE, f"{GLUE}: clips nothing"),
        "budget.precision": ("float16", RECIPE, f"{GLUE}: fp16"),
        "budget.loss_scale": (4.0, RECIPE, f"{GLUE}: fp16-init-scale"),
        "budget.loss_scale_window": (128, RECIPE, f"{GLUE}: fp16-scale-window"),
        **{
            f"by_task.{task}.{name}": (value, RECIPE, f"{GLUE}: {task.upper()}")
            for task, own in FINE_TUNING.items()
            for name, value in own.items()
        },
        **{
            f"by_task.wnli.{name}": (value, OURS, "the recipe has no WNLI; as RTE")
            for name, value in {"steps": 2_036, "warmup": 122, "batch": 16, "learning_rate": 2e-5}.items()
        },
        "tasks": (("sst2", "qnli", "mnli", "qqp"), PAPER, "Table 1"),
        "contestants": (table1.METHODS, PAPER, "Table 1 (it quotes most; here all are trained)"),
        "seeds": (5, OURS, "the paper does not say"),
        "length": (512, RECIPE, f"{GLUE}: max-positions"),
        "validation_rows": (50_000, OURS, "all rows of the validation sets"),
    },
    "table3": {
        **ALWAYS,
        **FLOAT32,
        **_noted(log=100, evaluate=1_000, save=1_000, watch=1_000),
        "size.layers": (12, PAPER, "A.8.2"),
        "size.width": (128, PAPER, "A.8.2"),
        "size.heads": (8, RECIPE, DOGS),
        "size.feed_forward": (512, RECIPE, "the linformer package of the example: 4 times the width"),
        "size.picture": (224, RECIPE, DOGS),
        "size.patch": (32, RECIPE, DOGS),
        "size.dropout": (0.0, RECIPE, DOGS),
        "budget.steps": (31_300, PAPER, f"100 epochs (A.8.2) of 313 steps ({DOGS})"),
        "budget.batch": (64, RECIPE, DOGS),
        "budget.accumulate": (1, RECIPE, NO_ACCUMULATION),
        "budget.learning_rate": (3e-5, RECIPE, DOGS),
        "budget.warmup": (0, RECIPE, DOGS),
        "budget.schedule": ("constant_with_warmup", RECIPE, f"{DOGS}: it makes a StepLR and never steps it"),
        "budget.weight_decay": (0.0, RECIPE, f"{DOGS}: Adam"),
        "budget.adam_beta2": (0.999, RECIPE, f"{DOGS}: Adam"),
        "budget.adam_epsilon": (1e-8, RECIPE, f"{DOGS}: Adam"),
        "budget.clip": (0.0, RECIPE, DOGS),
        "budget.clip_value": (0.0, RECIPE, DOGS),
        "budget.precision": ("float32", RECIPE, DOGS),
        "task": ("dogs_vs_cats", PAPER, "Table 3"),
        "contestants": (("softmax", "lln_diag", "linformer:projected_length=64"), PAPER, f"Table 3; k from {DOGS}"),
        "seeds": (1, OURS, "the paper does not say; a verdict needs three"),
        "validation_rows": (2000, OURS, "the example has 5,000 of Kaggle's 25,000"),
    },
    "fig9": {"contestants": (("lln_diag:target=paper",), PAPER, "Figure 9: the paper's own matching")},
    "fig10b": {
        **ALWAYS,
        **_noted(log=10, evaluate=1_000, save=500, watch=None),
        "size.layers": (12, RECIPE, DEIT_MODEL),
        "size.width": (192, RECIPE, DEIT_MODEL),
        "size.heads": (3, RECIPE, DEIT_MODEL),
        "size.feed_forward": (768, RECIPE, f"{DEIT_MODEL}: mlp_ratio 4"),
        "size.picture": (224, RECIPE, DEIT_MODEL),
        "size.patch": (16, RECIPE, DEIT_MODEL),
        "size.dropout": (0.0, RECIPE, f"{DEIT}: drop"),
        "budget.steps": (5_860, RECIPE, f"{DEIT}: 300 epochs, here of 20,000 dogs and cats; the paper names no data"),
        "budget.batch": (1024, RECIPE, "DeiT, README_deit.md: 256 on each of four GPUs"),
        "budget.accumulate": (1, RECIPE, NO_ACCUMULATION),
        "budget.learning_rate": (1e-3, RECIPE, f"{DEIT}: 5e-4 for 512 samples, in proportion"),
        "budget.warmup": (98, RECIPE, f"{DEIT}: five epochs"),
        "budget.schedule": ("cosine", RECIPE, DEIT),
        "budget.weight_decay": (0.05, RECIPE, DEIT),
        "budget.adam_beta2": (0.999, RECIPE, f"{DEIT}: AdamW"),
        "budget.adam_epsilon": (1e-8, RECIPE, f"{DEIT}: opt-eps"),
        "budget.clip": (0.0, RECIPE, f"{DEIT}: clip-grad"),
        "budget.clip_value": (0.0, RECIPE, DEIT),
        "budget.precision": ("float16", PAPER, "A.8.4"),
        "budget.loss_scale": (65536.0, RECIPE, f"{DEIT}: timm's NativeScaler: torch's defaults"),
        "budget.loss_scale_window": (2000, RECIPE, f"{DEIT}: the same"),
        "task": ("dogs_vs_cats", OURS, "the paper names no data"),
        "contestants": (fig10b.PRESETS["paper"].contestants, PAPER, "Figure 10b: alpha = beta = 2, 4, and matching"),
        "seeds": (1, OURS, "the paper shows one curve each; a verdict needs three"),
        "validation_rows": (2000, OURS, "as table3"),
    },
    "lra": {
        **ALWAYS,
        **_noted(log=100, save=1_000, watch=None),
        "size.layers": (2, RECIPE, SKY),
        "size.width": (64, RECIPE, SKY),
        "size.heads": (2, RECIPE, SKY),
        "size.feed_forward": (128, RECIPE, SKY),
        "size.length": (512, OURS, "not used: each task has its own"),
        "size.dropout": (0.1, RECIPE, SKY),
        "head": (128, RECIPE, "Skyformer, code/models/model_LRA.py"),
        "normalise": (False, RECIPE, "Skyformer, code/models/model_LRA.py: the bare mean"),
        "budget.steps": (50_000, RECIPE, SKY),
        "budget.batch": (32, RECIPE, SKY),
        "budget.accumulate": (1, RECIPE, f"{SKY}: bz_rate"),
        "budget.learning_rate": (1e-4, RECIPE, SKY),
        "budget.warmup": (1_000, RECIPE, f"{SKY}: ListOps"),
        "budget.schedule": ("one_cycle", RECIPE, f"{SKY_MAIN}: OneCycleLR, linear"),
        "budget.weight_decay": (0.0, RECIPE, SKY),
        "budget.adam_beta2": (0.999, RECIPE, SKY_MAIN),
        "budget.adam_epsilon": (1e-6, RECIPE, SKY_MAIN),
        "budget.clip": (0.0, RECIPE, f"{SKY_MAIN}: norms are not clipped"),
        "budget.clip_value": (1.0, RECIPE, f"{SKY_MAIN}: clip_grad_value_"),
        "budget.precision": ("float16", RECIPE, f"{SKY_MAIN}: mixed_precision"),
        "budget.loss_scale": (65536.0, RECIPE, f"{SKY_MAIN}: GradScaler with its defaults"),
        "budget.loss_scale_window": (2000, RECIPE, f"{SKY_MAIN}: the same"),
        "budget.evaluate_every": (500, RECIPE, f"{SKY}: eval_frequency"),
        "by_task.text.warmup": (80, RECIPE, SKY),
        "by_task.retrieval.batch": (16, RECIPE, SKY),
        "by_task.retrieval.learning_rate": (2e-4, RECIPE, SKY),
        "by_task.retrieval.warmup": (800, RECIPE, SKY),
        "by_task.retrieval.evaluate_every": (1_000, RECIPE, SKY),
        "by_task.pathfinder.batch": (128, RECIPE, SKY),
        "by_task.pathfinder.learning_rate": (2e-4, RECIPE, SKY),
        "by_task.pathfinder.warmup": (312, RECIPE, SKY),
        "by_task.image.batch": (256, RECIPE, SKY),
        "by_task.image.warmup": (175, RECIPE, SKY),
        **{
            f"lengths.{task}": (value, PAPER, "Table 5")
            for task, value in {
                "text": 4000,
                "listops": 2000,
                "retrieval": 4000,
                "pathfinder": 1024,
                "image": 1024,
            }.items()
        },
        "tasks": (lra.TASKS, PAPER, "Table 5"),
        "contestants": (lra.PRESETS["paper"].contestants, PAPER, f"Table 5; their options from {SKY}"),
        "seeds": (1, OURS, "the paper does not say; a verdict needs three"),
        "validation_rows": (10_000, OURS, "of the validation set; the recipe has a test set besides"),
    },
    "gaussian": {
        "looks": (5, OURS, "an open question, not in the paper"),
        "contestants": (("softmax",), OURS, "as above"),
        "seeds": (1, OURS, "as above"),
    },
}
OPEN_QUESTIONS = ("length", "imdb")  # nothing of them is in the paper: every number is ours
PRESETS: dict[str, Any] = {
    "fig8": fig8, "table1": table1, "table3": table3, "fig9": fig9, "fig10b": fig10b, "lra": lra, "length": length,
    "gaussian": gaussian, "imdb": imdb,
}  # fmt: skip
INHERITED = {"table1": ("pretraining.", "fig8"), "gaussian": ("pretraining.", "fig8"), "fig9": ("", "table3")}


def flattened(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """("budget.steps", 125000), … of nested dictionaries; what `source` says in words is left out."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        elif name != "source":
            yield prefix + name, value


def of_preset(command: str) -> dict[str, Any]:
    """Every hyper-parameter of the command's `--preset paper`."""
    return dict(flattened(asdict(PRESETS[command].PRESETS["paper"])))


def resolve(command: str, name: str) -> Row:
    """The row of a hyper-parameter; a preset that builds on another's takes its rows."""
    if command in OPEN_QUESTIONS:
        return of_preset(command)[name], OURS, "an open question, not in the paper"
    if name in ROWS.get(command, {}):
        return ROWS[command][name]
    prefix, other = INHERITED.get(command, ("", ""))
    if other and name.startswith(prefix):
        return resolve(other, name.removeprefix(prefix))
    raise KeyError(f"{name} of {command} --preset paper has no row in the table of sources")
