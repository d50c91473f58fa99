"""Quantizers that are made of quantizers: one after another, side by side, and over growing grids."""
