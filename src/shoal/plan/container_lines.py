"""A container in a generated script: its words once, as the bash array `container`, and where they stand."""

from __future__ import annotations

import re
from typing import NamedTuple

from shoal.batch import shell_quote
from shoal.job import Container, container_argv

_VARIABLE = re.compile(r"(\$\{[A-Za-z_][A-Za-z0-9_]*\}|\$[A-Za-z_][A-Za-z0-9_]*)")
_WIDTH = 110


class ContainerText(NamedTuple):
    """`lines` come before the launch; `around` before what runs inside, `step` among srun's own flags."""

    lines: str = ""
    around: str = ""
    step: str = ""


def container_lines(one: Container | None, scratch: str | None, *, gpus: bool, as_root: bool) -> ContainerText:
    """The folder that the script is submitted from and the profile's scratch are bound beside what was asked for."""
    if one is None:
        return ContainerText()
    one = one._replace(
        image=_expand_home(one.image), binds=[*map(_expand_home, one.binds), "$PWD", *([scratch] if scratch else [])]
    )
    array = _wrap_words([shell_text(word) for word in container_argv(one, [], "$PWD", gpus, as_root)])
    check = ""
    if one.image_is_path:
        image = shell_text(one.image)
        check = f'[ -e {image} ] || {{ echo "error: there is no image" {image} >&2; exit 2; }}\n'
    # ch-run stops without it, and not every job has it.
    user = 'export USER="${USER:-$(id -un)}"\n' if one.runtime == "charliecloud" else ""
    lines = f"{check}{user}container=(\n{array}\n)\n"
    return (
        ContainerText(lines, step=' "${container[@]}"')
        if one.by_srun
        else ContainerText(lines, around='"${container[@]}" ')
    )


def shell_text(text: str) -> str:
    """One shell word in which $NAMES are the job's own values."""
    parts = [f'"{part}"' if _VARIABLE.fullmatch(part) else shell_quote(part) for part in _VARIABLE.split(text) if part]
    return "".join(parts) or "''"


def _expand_home(path: str) -> str:
    return f"$HOME{path[1:]}" if path == "~" or path.startswith("~/") else path


def _wrap_words(found: list[str]) -> str:
    lines = [""]
    for word in found:
        if lines[-1] and len(lines[-1]) + len(word) > _WIDTH:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else f"    {word}"
    return "\n".join(lines)
