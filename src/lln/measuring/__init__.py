"""Time and peak memory of a call, side by side with others."""
