"""All commands of `lln`, each in a file of its own."""

import typer

from lln.cli import reproduce, reproduce_training  # noqa: F401  (the second adds commands to the first)
from lln.cli.bench_decode import decode
from lln.cli.bench_encode import encode
from lln.cli.bench_instruments import bench_instruments
from lln.cli.bench_kernels import kernels
from lln.cli.bench_operator import operator
from lln.cli.bench_peers import peers
from lln.cli.bench_zoo import zoo
from lln.cli.calibrate import calibrate
from lln.cli.convert import convert
from lln.cli.demo import demo
from lln.cli.distil import distil
from lln.cli.info import info
from lln.cli.report import report
from lln.cli.words import InWords

app = typer.Typer(
    cls=InWords,
    help="Linear Log-Normal attention: demo, figures of the paper, benchmarks, calibration, conversion of models.",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(info)
app.command()(demo)
app.command()(calibrate)
app.command()(convert)
app.command()(distil)
app.command()(report)
app.add_typer(reproduce.app, name="reproduce")

bench = typer.Typer(help="Speed and memory, as ratios measured in one run.", no_args_is_help=True)
bench.command()(operator)
bench.command()(kernels)
bench.command()(zoo)
bench.command()(peers)
bench.command()(decode)
bench.command()(encode)
bench.command("instruments")(bench_instruments)
app.add_typer(bench, name="bench")
