"""Which project a call is about: `project` is a directory in it; None is the working directory."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.describe import Project

ProjectPath = str | os.PathLike[str] | None


def state_directory(project: ProjectPath = None) -> str:
    """Where the runs of a project are recorded; InputError where no project is. The settings are not read."""
    from shoal.describe import find_home

    return find_home(project)


def read_project(project: ProjectPath = None) -> Project:
    """The settings of a project; InputError where none is."""
    from pathlib import Path

    from shoal.describe import find_project

    return find_project(Path.cwd() if project is None else Path(project), os.environ)


def project_or_directory(project: ProjectPath = None) -> Project:
    """The settings of a project; where none is, those of a directory without shoal.toml: commands, batch scripts and
    adopted jobs need none."""
    from pathlib import Path

    from shoal.describe import project_or_bare

    return project_or_bare(Path.cwd() if project is None else Path(project), os.environ)
