"""What a program tells about itself: how far it has come, and its metrics. One reader for all of shoal.

    reader.py     an output directory and its logs -> progress, the last value of each metric, curves
    lines.py      one line of a log, or of $SHOAL_PROGRESS
    tables.py     metrics.json, metrics.jsonl, Hugging Face's and timm's files, Lightning's metrics.csv
    trackers.py   TensorBoard's and W&B's record formats, read without either library

Nothing is asked of the program.
"""

from .lines import ProgressCount, parse_progress, totals_of_command, value_of
from .reader import NewMetrics, Progress, RunOutput, read_metrics, read_progress, read_series
from .tables import flatten_numbers

__all__ = [
    "NewMetrics",
    "Progress",
    "ProgressCount",
    "RunOutput",
    "flatten_numbers",
    "parse_progress",
    "read_metrics",
    "read_progress",
    "read_series",
    "totals_of_command",
    "value_of",
]
