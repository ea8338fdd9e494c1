"""Hugging Face's models with any member of the zoo for their attention, all else equal."""
