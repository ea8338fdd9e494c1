"""All commands of `lln`, each in a file of its own."""

import typer

from lln.cli.bench_operator import operator
from lln.cli.calibrate import calibrate
from lln.cli.demo import demo
from lln.cli.info import info

app = typer.Typer(
    help="Linear Log-Normal attention: demo, benchmarks, calibration.", no_args_is_help=True, add_completion=False
)
app.command()(info)
app.command()(demo)
app.command()(calibrate)

bench = typer.Typer(help="Speed and memory, as ratios measured in one run.", no_args_is_help=True)
bench.command()(operator)
app.add_typer(bench, name="bench")
