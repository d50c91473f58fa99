"""Numbers that say how good a tokenizer is."""
