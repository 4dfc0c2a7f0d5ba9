"""Figures of runs and comparisons."""
