"""Stores: where the journal and the checkpoints of a run live."""
