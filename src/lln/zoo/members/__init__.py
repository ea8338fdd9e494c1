"""One file per attention: its equation, its reference, what it costs, where it departs from its paper."""
