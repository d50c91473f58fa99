"""Hostile files for every parser of the package."""
