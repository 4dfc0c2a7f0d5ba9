"""Integrations with other tools. Each needs the package of its tool."""
