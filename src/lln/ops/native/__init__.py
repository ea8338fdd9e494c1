"""What the operations' native backends share: the compiled library, and how tensors are handed to it."""
