"""Decide which intervals of training to run next."""
