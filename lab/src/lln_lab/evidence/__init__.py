"""Softmax against linear attentions on eleven tasks: the plan, what came out, and what is left to run."""
