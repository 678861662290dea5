"""Find what a project no longer needs, and move it to a backup directory from which it can be restored.

leftovers.py        what ended runs left: failed attempts, logs, checkpoints, code snapshots, objects, staged data
near_duplicates.py  scripts that are nearly the same
backup.py           move files to backup_<timestamp>/, restore them, delete a backup
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.cleanup.backup import (
        BackupResult,
        delete_backup,
        list_backups,
        move_to_backup,
        read_manifest,
        restore_backup,
    )
    from shoal.cleanup.leftovers import (
        ITEM_KINDS,
        CleanupItem,
        find_leftovers,
        read_run_directories,
        stale_snapshots,
        temporary_files,
        unused_objects,
        unused_staged_data,
    )
    from shoal.cleanup.near_duplicates import list_near_duplicates
else:
    __getattr__ = lazy_exports(__name__)
