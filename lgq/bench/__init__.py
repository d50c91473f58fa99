"""Measurements: ratios taken in one run, and memory in a fresh process a row."""
