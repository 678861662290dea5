"""What the names of a sweep rest on, kept once for all commands that describe the sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.describe.run_names import SweepNaming, read_naming, save_naming
from shoal.errors import InputError
from shoal.kernel import files

ONE = SweepNaming({"lr": 0.1}, ("width",))
OTHER = SweepNaming({"lr": 0.1}, ("depth",))


@pytest.mark.parametrize("overtaken_by", [ONE, OTHER], ids=["the same", "another"])
def test_of_two_commands_at_once_only_a_different_description_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overtaken_by: SweepNaming
) -> None:
    """The other command creates the file after this one has seen that none exists."""
    home, create = str(tmp_path), files.create_exclusive

    def overtake(path: str, data: bytes, **more: Any) -> bool:
        monkeypatch.setattr(files, "create_exclusive", create)
        save_naming(home, "001_a", "000_train", 0, overtaken_by)
        return create(path, data, **more)

    monkeypatch.setattr(files, "create_exclusive", overtake)
    if overtaken_by == ONE:
        save_naming(home, "001_a", "000_train", 0, ONE)
    else:
        with pytest.raises(InputError, match="described 001_a/000_train differently"):
            save_naming(home, "001_a", "000_train", 0, ONE)
    assert read_naming(home, "001_a", "000_train") == (1, overtaken_by)
