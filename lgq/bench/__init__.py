"""Benchmarks: times as ratios within one run, because a noisy machine slows all sides of a ratio alike."""
