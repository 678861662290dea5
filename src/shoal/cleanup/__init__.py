"""What could be removed (leftovers, near copies, old outputs), and moving it away so that it can come back."""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.cleanup import backup
    from shoal.cleanup.backup import BackupResult, list_backups, read_manifest
    from shoal.cleanup.leftovers import (
        ITEM_KINDS,
        CleanupItem,
        find_leftovers,
        read_run_directories,
        stale_snapshots,
        temporary_files,
        unused_staged_data,
    )
    from shoal.cleanup.near_duplicates import list_near_duplicates
else:
    __getattr__ = lazy_exports(__name__)
