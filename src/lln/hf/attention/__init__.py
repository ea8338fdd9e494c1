"""One call of attention, as transformers makes it: what it asks for, which keys count, and the function that answers."""
