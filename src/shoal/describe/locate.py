"""Where shoal.toml and the user's files are. Every command imports this, so it imports little; paths are strings."""

from __future__ import annotations

import os
from collections.abc import Mapping

TOML_NAME = "shoal.toml"
STATE_NAME = ".shoal"
#: Set where an order came over ssh (remote/stub.py): the project's directory on the cluster. The command itself runs in
#: the snapshot of the code that came with the order.
ROOT_VARIABLE = "SHOAL_ROOT"
#: The project's directory in that snapshot.
CODE_VARIABLE = "SHOAL_CODE"


def find_root(start: str | os.PathLike[str]) -> str:
    """The nearest folder from `start` upwards that has a shoal.toml, or `start` itself if `shoal pack`, which needs
    none, has kept its state there; else an InputError that says how to make one.
    """
    here = folder = os.path.abspath(start)
    while True:
        # lexists: a broken link or a folder of that name is the user's mistake to hear about, not a reason to walk on.
        if os.path.lexists(os.path.join(folder, TOML_NAME)):
            return folder
        above = os.path.dirname(folder)
        if above == folder and os.path.isdir(os.path.join(here, STATE_NAME, "runs")):
            return here
        if above == folder:
            from shoal.errors import InputError

            raise InputError(
                f"no runs and no {TOML_NAME} in {here}, and no {TOML_NAME} in a directory above it",
                hint="shoal run -- python train.py   # a first run; or describe a project with: shoal init",
            )
        folder = above


def home_of(root: str | os.PathLike[str], environ: Mapping[str, str]) -> str:
    """The folder of all state: SHOAL_HOME, or .shoal/ in the project.

    A relative SHOAL_HOME is meant from the project's root: from the current folder it would be another state in every
    folder, and a run submitted from two of them would exist twice.
    """
    asked, root = environ.get("SHOAL_HOME"), delivered_root(environ) or root
    return os.path.normpath(os.path.join(root, os.path.expanduser(asked) if asked else STATE_NAME))


def delivered_root(environ: Mapping[str, str]) -> str | None:
    """The project's directory on this cluster, for a command that came over ssh."""
    return environ.get(ROOT_VARIABLE) or None


def code_path(path: str, environ: Mapping[str, str]) -> str:
    """Where a file of the project is read before its run starts: in the code that came over ssh, if it did."""
    root, code = delivered_root(environ), environ.get(CODE_VARIABLE)
    if not root or not code or os.path.commonpath([root, os.path.abspath(path)]) != root:
        return path
    return os.path.normpath(os.path.join(code, os.path.relpath(path, root)))


def user_config_path(environ: Mapping[str, str]) -> str:
    """$XDG_CONFIG_HOME/shoal/config.toml, or ~/.config/shoal/config.toml; it need not exist."""
    base = environ.get("XDG_CONFIG_HOME", "")
    # The XDG rules say that a relative path is invalid and has to be ignored.
    home = environ.get("HOME") or os.path.expanduser("~")
    return os.path.join(base if os.path.isabs(base) else os.path.join(home, ".config"), "shoal", "config.toml")


def find_home(start: str | os.PathLike[str] | None = None) -> str:
    """The state directory of the project around a directory, by default the current one, found without reading its
    configuration."""
    return home_of(find_root(os.getcwd() if start is None else start), os.environ)
