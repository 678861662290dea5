"""Data: sharding, reading, staging and advice, against what people use otherwise.

python -m benchmarks data                     5,000 files (SHOAL_BENCH_FILES=50000 for the 2.65 GB of the goals)
python -m benchmarks.data.sharding             one part: sharding, reading, staging [seed|busy|epochs|jobs], advising
chrt -r 1 python -m ...                       on a busy machine, as root: what else runs there does not count
SHOAL_BENCH_DIR=/scratch                      where files are made: 15 GB for 50,000 (/tmp/shoal-bench-data)
SHOAL_BENCH_RIVALS=rivals/bin/python          a Python with the rivals and this checkout:
    python3 -m venv rivals && rivals/bin/pip install torch webdataset mosaicml-streaming litdata -e '.[data]'
The slow store and the disk's own speed need: apt-get install gcc pkg-config fuse3 libfuse3-dev fio
"""

from __future__ import annotations


def main() -> None:
    from benchmarks.data import advising, reading, sharding, staging

    for part in (sharding, reading, staging, advising):
        part.main()
