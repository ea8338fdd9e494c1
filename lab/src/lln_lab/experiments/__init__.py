"""One file per experiment; nothing else in the package uses them."""
