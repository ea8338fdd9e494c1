"""Pages of the documentation that are made from results: `python -m lln_lab.pages.zoo docs`, `…measured docs`."""
