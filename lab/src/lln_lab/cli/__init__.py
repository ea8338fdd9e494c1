"""The laboratory's commands, which `lln` finds by entry point. They import torch only when they run."""
