"""Which attention for this shape: measured here, and joined with the quality results nearest to it."""
