"""Data next to the GPU: few big files instead of many small ones, one copy per node, reading that starts at once.

    pack      a folder, list or iterator -> shards, an index per shard, a manifest          packing, iterating
    format    tar in WebDataset's convention, TFRecord, squashfs: nobody is locked in        tar, tfrecord, squash
    check     verify, info, unpack; shards made elsewhere get their index on demand         checking, foreign
    read      random access and streams, exactly once over ranks and workers, resumable     reading, order, adapters
    stage     node-local copies shared by all jobs of a node: job/staging, because it runs inside jobs
    measure   bench (the storage), advise (the loader against the model)

`open` is the door for programs: `shoal.data.open(os.environ["SHOAL_DATA_IMAGENET"])`. Needs numpy (the extra "data").
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.data import advising, needs
    from shoal.data.advising import LoaderAdvice, ReadThroughput
    from shoal.data.bench_slurm import slurm_launcher
    from shoal.data.benching import BenchResult, run_bench
    from shoal.data.checking import VerifyResult, describe_dataset, verify_dataset
    from shoal.data.estimating import ShardingEstimate, estimate_sharding
    from shoal.data.iterating import shard_samples
    from shoal.data.packing import ShardingResult, shard_dataset
    from shoal.data.planning import ShardSettings
    from shoal.data.reading import Dataset, open
    from shoal.data.scan import SourceScan
    from shoal.data.staged import load_function, stage_and_run
    from shoal.data.unpacking import ExtractResult, extract_dataset
else:
    __getattr__ = lazy_exports(__name__)
