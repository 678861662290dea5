"""`container = "images/torch.sif"` of a step, an experiment or a cluster; or a table with runtime, binds, options."""

from __future__ import annotations

from shoal.describe.document import Table
from shoal.errors import InputError
from shoal.job import GPU_VENDORS, NO_CONTAINER, RUNTIMES, ContainerError, merge_settings, parse_bind
from shoal.model import ContainerSettings

KEYS = ("runtime", "image", "binds", "gpu", "options", "workdir")
#: Nothing that shoal sets (ranks, folders, the master's address) would reach the program.
_HIDES_ENVIRONMENT = ("--cleanenv", "-e", "--containall", "-C")


def parse_container(outer: Table) -> ContainerSettings:
    """What `container` in a table says; every mistake is an InputError with its line."""
    if not isinstance(outer.values.get("container"), dict):
        word = outer.text("container")
        return ContainerSettings() if word is None else parse_word(word, outer.place("container"))
    table = outer.table("container", KEYS)
    for option in table.strings("options") or ():
        if option in _HIDES_ENVIRONMENT:
            raise table.error(
                ("options",),
                f"{option} hides from the program what shoal tells it in its environment",
                hint='hide single variables instead: command = "env -u PYTHONPATH python train.py"',
            )
    for bind in table.strings("binds") or ():
        try:
            parse_bind(bind)
        except ContainerError as error:
            raise table.error(("binds",), error.message, hint=error.hint) from None
    image = table.text("image")
    if image is not None:
        _check_image(image, table.place("image"))
    return ContainerSettings(
        runtime=table.text("runtime", (*RUNTIMES, NO_CONTAINER)),
        image=image,
        binds=list(table.strings("binds") or ()),
        gpu=table.text("gpu", GPU_VENDORS),
        options=list(table.strings("options") or ()),
        workdir=table.text("workdir"),
    )


def parse_word(word: str, place: str) -> ContainerSettings:
    """One word for a container: an image, RUNTIME:IMAGE, or "none"."""
    if word == NO_CONTAINER:
        return ContainerSettings(runtime=NO_CONTAINER)
    runtime, colon, image = word.partition(":")
    if not colon or runtime not in RUNTIMES:
        runtime, image = "", word
    _check_image(image, place)
    return ContainerSettings(runtime=runtime or None, image=image)


def over(upper: ContainerSettings, lower: ContainerSettings) -> ContainerSettings:
    """What an experiment or a flag says over its step; `none` is said at once for all of it."""
    return ContainerSettings(**merge_settings(upper.record(), lower.record())) if upper else lower


def _check_image(image: str, place: str) -> None:
    if not image or image != image.strip() or any(not character.isprintable() for character in image):
        raise InputError(f"{image!r} is not an image", hint='container = "images/torch.sif"', place=place)
