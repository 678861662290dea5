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
