"""Data: packing, reading, staging and advice, against what people use otherwise.

python -m benchmarks data                     5,000 files (SHOAL_BENCH_FILES=50000 for the 2.65 GB of the goals)
SHOAL_BENCH_RIVALS=/venv/bin/python           a Python with webdataset, mosaicml-streaming and litdata, for the rivals
"""

from __future__ import annotations


def main() -> None:
    from benchmarks.data import advising, packing, reading, staging

    for part in (packing, reading, staging, advising):
        part.main()
