"""`python -m lln.cli`, for launchers that start modules: torchrun -m lln.cli reproduce fig8."""

from lln.cli import main

main()
