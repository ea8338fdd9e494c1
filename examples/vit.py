"""An image model: ViT with linear attention from the start, a few steps of training on random images."""

import torch
from transformers import ViTConfig, ViTForImageClassification

import lln.hf  # noqa: F401  (registers lln_diag)


def main(steps: int = 5) -> None:
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=64, patch_size=4, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        num_labels=2,
    )  # fmt: skip
    config.lln = {"block_size": 64}
    model = ViTForImageClassification._from_config(config, attn_implementation="lln_diag")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    labels = torch.arange(8) % 2
    images = torch.randn(8, 3, 64, 64) + labels[:, None, None, None]  # one class is brighter
    for step in range(steps):
        loss = model(pixel_values=images, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
