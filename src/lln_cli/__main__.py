"""`python -m lln_cli`, for launchers that start modules: torchrun -m lln_cli reproduce fig8."""

from lln_cli import main

main()
