"""Propose configurations to train next, given the results of earlier trials."""
