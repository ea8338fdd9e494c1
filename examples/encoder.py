"""An encoder: BERT with LLN+Diag attention on a padded batch, converted from softmax, saved and loaded.

python examples/encoder.py                     a small random BERT
python examples/encoder.py --model PATH        a pretrained one
"""

import argparse
import tempfile

import torch
from transformers import AutoModel, BertConfig, BertModel

import lln.hf


def main(model_path: str | None = None) -> None:
    torch.manual_seed(0)
    small = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    model = (AutoModel.from_pretrained(model_path) if model_path else BertModel(small)).eval()

    ids = torch.randint(1000, 2000, (4, 256))
    mask = torch.ones_like(ids)
    mask[0, 200:] = 0  # padding of the first sample
    with torch.no_grad():
        softmax = model(input_ids=ids, attention_mask=mask).last_hidden_state
        lln.hf.convert(model, "lln_diag", calibrate=[{"input_ids": ids, "attention_mask": mask}])
        linear = model(input_ids=ids, attention_mask=mask).last_hidden_state
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            restored = AutoModel.from_pretrained(folder).eval()  # nothing to say: config.lln does
        again = restored(input_ids=ids, attention_mask=mask).last_hidden_state
    counts = mask.bool()
    cosine = torch.cosine_similarity(softmax[counts], linear[counts], dim=-1).mean()
    print(f"cosine of hidden states, softmax and LLN+Diag: {cosine:.3f}")
    print(f"restored model gives the same: {torch.equal(linear, again)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None)
    main(parser.parse_args().model)
