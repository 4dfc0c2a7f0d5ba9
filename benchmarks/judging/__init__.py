"""Parts of `benchmarks/judges.py`: problems, algorithms and statistics."""
