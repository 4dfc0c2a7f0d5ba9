"""Doors to other tools; each needs the tool's own package."""
