"""Reports: what a finished or running run looks like."""
