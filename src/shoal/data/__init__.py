"""Datasets for training: few large files instead of many small ones, one copy per node, reading in any order.

Write shards
    scan.py file_selection.py  the files of a directory or a list, as samples with keys, classes and sizes
    shard_plan.py              which sample goes into which shard, and the seeded permutations
    shard_files.py             shard a directory or a list of files; shard_workers.py: its processes
    shard_iterator.py          shard what a Python iterator yields
    shard_writer.py            write one shard with its index and checksum; squashfs images
    formats.py                 tar in WebDataset's convention, and TFRecord
    manifest.py                the manifest of a dataset and the index of a shard
Read
    dataset.py                 `shoal.data.open`: random access by number, in batches
    streaming.py               shuffled samples, each once per epoch over ranks and workers, resumable
    shardset.py prefetch.py    the bytes of shards, from the staged copy or the source; reading ahead
    external_shards.py         shards that other tools made: indexed on first use
    for_torch.py for_tensorflow.py   datasets and loaders of PyTorch and TensorFlow
Check and measure
    verify.py                  verify, describe and unpack a dataset
    bench.py advise.py         measure the storage; find out whether loader or model is the bottleneck
    stage.py                   `shoal data stage`; the copying itself is in job/staging.py, because it runs inside jobs
    optional_packages.py       import numpy, torch and others with an install hint

Programs use `shoal.data.open(os.environ["SHOAL_DATA_IMAGENET"])`. Needs numpy (the extra "data").
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.data import advise, optional_packages
    from shoal.data.advise import LoaderAdvice, ReadThroughput
    from shoal.data.bench import BenchResult, run_bench, slurm_launcher
    from shoal.data.dataset import Dataset, open
    from shoal.data.scan import SourceScan
    from shoal.data.shard_files import ShardingEstimate, ShardingResult, estimate_sharding, shard_dataset
    from shoal.data.shard_iterator import shard_samples
    from shoal.data.shard_plan import ShardSettings
    from shoal.data.stage import load_function, stage_and_run
    from shoal.data.verify import ExtractResult, VerifyResult, describe_dataset, extract_dataset, verify_dataset
else:
    __getattr__ = lazy_exports(__name__)
