"""One folder per operation: its equations and operands, one torch operator, and the backends that compute it."""
