"""Engines execute jobs: here, in worker processes, on a Ray cluster, simulated."""
