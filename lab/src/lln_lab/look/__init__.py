"""Attention maps of a pretrained model for a text of the user's own: `lln look MODEL "some text"`."""
