"""A causal model: a small Llama, converted, generating from a state whose size does not depend on what came before."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import lln.hf


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 256, (2, 128))
    lln.hf.convert(model, "lln_diag", calibrate=[ids])
    mask = torch.ones_like(ids)
    mask[0, :40] = 0  # left padding

    tokens = model.generate(ids, attention_mask=mask, max_new_tokens=16, do_sample=False)  # picks LLNCache by itself
    same = model.generate(ids, attention_mask=mask, max_new_tokens=16, do_sample=False, use_cache=False)
    print(f"new tokens: {tokens[0, 128:].tolist()}, the same without cache: {torch.equal(tokens, same)}")

    cache = lln.hf.LLNCache.of(model)  # a loop of your own
    with torch.no_grad():
        for piece in ids.split(32, dim=1):
            model(piece, past_key_values=cache, use_cache=True)
            print(f"after {cache.get_seq_length()} tokens the state takes {cache.nbytes():,} bytes")


if __name__ == "__main__":
    main()
