"""All benchmarks of `lln bench`, each in a file of its own."""

import typer

from lln_lab.cli.bench_decode import decode
from lln_lab.cli.bench_encode import encode
from lln_lab.cli.bench_gpu import gpu
from lln_lab.cli.bench_instruments import instruments
from lln_lab.cli.bench_kernels import kernels
from lln_lab.cli.bench_matching import matching, matching_model, matching_training
from lln_lab.cli.bench_near_far import near_far
from lln_lab.cli.bench_near_far_speed import near_far_speed
from lln_lab.cli.bench_near_far_suspects import near_far_suspects
from lln_lab.cli.bench_near_far_terms import near_far_terms
from lln_lab.cli.bench_onnx import onnx
from lln_lab.cli.bench_operator import operator
from lln_lab.cli.bench_parallel import parallel
from lln_lab.cli.bench_peers import peers
from lln_lab.cli.bench_start import start
from lln_lab.cli.bench_sums import sums
from lln_lab.cli.bench_vit import vit
from lln_lab.cli.bench_zoo import zoo
from lln_lab.cli.summary import with_summary

# In the order of the help, with the line that each has there. A command's own --help says more.
SUMMARY = {
    "operator": "Forward + backward against eager PyTorch.",
    "kernels": "The CPU kernel against bare matrix products.",
    "zoo": "Every attention of the zoo: time and memory of a step.",
    "peers": "The zoo against other packages.",
    "decode": "Decoding with LLN, LLN+Diag and softmax.",
    "encode": "Encoding against softmax, and the break-even length.",
    "instruments": "The spectral gap at long lengths, and a probe.",
    "matching": "Entropy of LLN minus softmax's on many distributions.",
    "matching-model": "The same for every head of a model.",
    "matching-training": "Entropy and loss while a small RoBERTa trains.",
    "sums": "Errors against float64, from 1,000 tokens up.",
    "near-far": "Near-far attention fitted to a model.",
    "near-far-terms": "Error of each term of near-far attention.",
    "near-far-suspects": "Perplexity with one estimate changed at a time.",
    "near-far-speed": "Time of near-far attention, and break-even.",
    "parallel": "One sequence over 1, 2 and 4 processes.",
    "start": "Start-up time, relative to `import torch`.",
    "gpu": "Times on a GPU, and shares of its bandwidth.",
    "onnx": "Size and speed before and after ONNX export.",
    "vit": "Train, convert and distil a vision transformer.",
}
app = typer.Typer(
    cls=with_summary(SUMMARY), help="Measure speed and memory, as ratios within one run.", no_args_is_help=True
)
for _benchmark in (
    operator,
    kernels,
    zoo,
    peers,
    decode,
    encode,
    instruments,
    matching,
    matching_model,
    matching_training,
    sums,
    near_far,
    near_far_terms,
    near_far_suspects,
    near_far_speed,
    parallel,
    start,
    gpu,
    onnx,
    vit,
):
    app.command()(_benchmark)
