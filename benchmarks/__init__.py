"""Measurements, as ratios against something run at the same time: `python -m benchmarks [NAME...]`.

Each module here has a `main()` that prints Markdown; what is worth keeping goes to RESULTS.md with its date.
"""
