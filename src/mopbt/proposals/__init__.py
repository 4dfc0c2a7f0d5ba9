"""Proposals: which configurations to try next, from what came of those tried before."""
