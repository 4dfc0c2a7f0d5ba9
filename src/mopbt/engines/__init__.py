"""Engines: where jobs are carried out."""
