"""Where things are. Imported by every command, so it imports nothing that takes time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from shoal.errors import InputError

TOML_NAME = "shoal.toml"


def find_root(start: Path) -> Path:
    """The nearest folder from `start` upwards that has a shoal.toml, or an InputError that says how to make one."""
    here = Path(os.path.abspath(start))
    for folder in (here, *here.parents):
        # lexists: a broken link or a folder of that name is the user's mistake to hear about, not a reason to walk on.
        if os.path.lexists(folder / TOML_NAME):
            return folder
    raise InputError(f"no {TOML_NAME} in {here} or in any folder above it", hint="shoal init")


def home_of(root: Path, environ: Mapping[str, str]) -> Path:
    """The folder of all state: SHOAL_HOME, or .shoal/ in the project.

    A relative SHOAL_HOME is meant from the project's root: from the current folder it would be another state in every
    folder, and a run submitted from two of them would exist twice.
    """
    asked = environ.get("SHOAL_HOME")
    return Path(os.path.normpath(root / Path(asked).expanduser())) if asked else root / ".shoal"


def user_config_path(environ: Mapping[str, str]) -> Path:
    """$XDG_CONFIG_HOME/shoal/config.toml, or ~/.config/shoal/config.toml; it need not exist."""
    base = environ.get("XDG_CONFIG_HOME", "")
    # The XDG rules say that a relative path is invalid and has to be ignored.
    folder = Path(base) if os.path.isabs(base) else Path(environ.get("HOME") or os.path.expanduser("~")) / ".config"
    return folder / "shoal" / "config.toml"
