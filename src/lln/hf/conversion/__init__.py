"""A pretrained softmax model made linear: measured on data, given its parameters, saved, and compared with the original."""
