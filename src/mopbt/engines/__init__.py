"""Engines execute jobs: in this process, in worker processes, on a Ray cluster, simulated."""
