"""Pages: a report as one file, and a live dashboard."""
