"""What could be removed (leftovers, near copies, old outputs), and moving it away so that it can come back."""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.cleanup import backup
    from shoal.cleanup.backup import Moved, backups, read_manifest
    from shoal.cleanup.leftovers import KINDS, Item, find_leftovers, read_left
    from shoal.cleanup.near_copies import find_near_copies
    from shoal.cleanup.stale import half_written, stale_snapshots, unused_scratch
else:
    __getattr__ = lazy_exports(__name__)
