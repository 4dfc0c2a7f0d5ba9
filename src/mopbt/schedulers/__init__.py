"""Schedulers: frozen settings with three pure functions over the table of a run."""
