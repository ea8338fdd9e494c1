"""What people measure embeddings and language models by, on local files: `lln evaluate`."""
