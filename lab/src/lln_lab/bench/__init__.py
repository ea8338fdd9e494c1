"""Time and memory, side by side, as ratios measured in one run."""
