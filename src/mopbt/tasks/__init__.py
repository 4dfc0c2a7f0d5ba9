"""Provide ready-made tasks; no other part of the library imports them."""
