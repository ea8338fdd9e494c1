"""Train a masked language model with LLN+Diag attention by transformers' Trainer, on one process or several.

    python examples/train_with_trainer.py --steps 20
    torchrun --nproc_per_node 2 examples/train_with_trainer.py --steps 20 --batch 4

Texts are the sources of Python's standard library, as bytes, so nothing is downloaded.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from transformers import RobertaConfig, RobertaForMaskedLM, Trainer, TrainingArguments

import lln.hf  # noqa: F401  (registers lln_diag)

LENGTH, MASKED, MASK_TOKEN, FIRST_BYTE = 128, 16, 3, 4


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    """Pieces of source text with as many masked bytes in each: then the mean over processes is the mean over all."""
    generator = torch.Generator().manual_seed(0)
    source = b"".join(p.read_bytes() for p in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40])
    made = []
    for i in range(count):
        ids = torch.tensor(list(source[i * LENGTH : (i + 1) * LENGTH])) + FIRST_BYTE
        masked = torch.randperm(LENGTH, generator=generator)[:MASKED]
        labels = torch.full_like(ids, -100)
        labels[masked] = ids[masked]
        made.append({"input_ids": ids.index_fill(0, masked, MASK_TOKEN), "labels": labels})
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="rows a step, on each process")
    parser.add_argument("--attention", default="lln_diag")
    parser.add_argument("--out", type=Path, default=Path("runs/trainer"))
    given = parser.parse_args()

    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=256 + FIRST_BYTE, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=LENGTH + 2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    config.lln = {"block_size": 32}
    model = RobertaForMaskedLM._from_config(config, attn_implementation=given.attention)
    # This model takes no count of items, so Trainer would multiply its loss by the number of processes and of
    # accumulation steps.
    model.accepts_loss_kwargs = False
    arguments = TrainingArguments(
        output_dir=str(given.out), max_steps=given.steps, per_device_train_batch_size=given.batch, learning_rate=1e-3,
        use_cpu=not torch.cuda.is_available(), logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
        dataloader_pin_memory=False, seed=0,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=rows(256))
    trainer.train()
    if trainer.is_world_process_zero():
        trainer.save_model(str(given.out))
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        (given.out / "losses.txt").write_text("\n".join(map(str, losses)) + "\n")
        print(f"loss {losses[0]:.3f} at the first step, {losses[-1]:.3f} at the last")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # a process that just ends while others still work may abort


if __name__ == "__main__":
    main()
