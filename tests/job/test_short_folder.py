"""Short folders in /tmp for sockets: held while somebody lives, removed by the next one when nobody does."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.job.pack import ray_cluster
from shoal.job.pack.ray_cluster import ShortTempDir


def test_a_folder_that_nobody_holds_any_more_is_removed_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "_TEMP_ROOT", str(tmp_path))
    code = (
        f"from shoal.job.pack import ray_cluster as s; s._TEMP_ROOT = {str(tmp_path)!r}; print(s.ShortTempDir().path)"
    )
    (tmp_path / "sr_backup_").mkdir()
    held = ShortTempDir()
    left = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    assert os.path.isdir(left), "its maker ended without a word"
    another = ShortTempDir()
    assert not os.path.exists(left) and (tmp_path / "sr_backup_").exists()
    assert os.path.isdir(held.path) and stat.S_IMODE(os.stat(held.path).st_mode) == 0o700
    for folder in (held, another):
        folder.close()
        folder.close()
        assert not os.path.exists(folder.path)
