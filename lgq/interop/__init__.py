"""Tokens, data sets and trained models of other libraries, in and out."""
