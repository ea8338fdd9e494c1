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

app = typer.Typer(help="Measure speed and memory, as ratios within one run.", no_args_is_help=True)
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
