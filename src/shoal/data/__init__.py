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
    from shoal.data.advising import Advice, Delivery
    from shoal.data.bench_slurm import launcher
    from shoal.data.benching import Bench, bench
    from shoal.data.checking import Verified, info, verify
    from shoal.data.estimating import Estimate, estimate
    from shoal.data.iterating import pack_samples
    from shoal.data.packing import Packed, pack
    from shoal.data.planning import Settings
    from shoal.data.reading import Dataset, open
    from shoal.data.scan import Scan
    from shoal.data.staged import load_function, stage_and_run
    from shoal.data.unpacking import Unpacked, unpack
else:
    __getattr__ = lazy_exports(__name__)
