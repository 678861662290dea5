"""Names of a sweep's runs that show only what varies and stay the same when the sweep grows.

    000_train_depth4_lr0.1_0        base, the parameters that vary in alphabetical order, the seed

What the names depend on is recorded (`SweepNaming`) in the state directory: sweeps/<experiment>/<base>.<n>.json, of
which the newest counts. A file is created once and never changed; of two commands that grow a sweep in different ways
at the same moment, one fails. Those that grow it in the same way, such as tasks of one array, all succeed.

A parameter that had one value when the sweep was first described is shown only where it has another; one that varied
then is always shown, even when one value of it is left. A parameter that is added later is shown, because runs with it
differ from those before; unless `defaults` gives the value that those had: with that value it is neither shown nor
passed, and the run is the existing one.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.describe.expand import SweepPoint
from shoal.describe.parameters import Params, Scalar, format_value
from shoal.describe.search import trial_label
from shoal.errors import InputError
from shoal.kernel import files
from shoal.names import MAX_COMPONENT, MAX_NAME, make_slug

_HASH_LENGTH = 8


class SweepNaming(NamedTuple):
    """What the names of one sweep rest on: the first values of parameters that did not vary, and all others' names.

    `defaults` are the declared values of parameters that runs may lack, for whoever tabulates them.
    """

    bases: Mapping[str, Scalar] = {}
    shown: tuple[str, ...] = ()
    defaults: Mapping[str, Scalar] = {}


def drop_defaults(
    points: Sequence[SweepPoint], defaults: Mapping[str, Scalar], naming: SweepNaming | None
) -> list[SweepPoint]:
    """Leave out parameters at their declared default, except where earlier runs were given that value."""
    silent = {
        name: value
        for name, value in defaults.items()
        if naming is None or not same_value(naming.bases.get(name), value)
    }
    if not silent:
        return list(points)
    return [
        point._replace(
            params={n: v for n, v in point.params.items() if not (n in silent and same_value(v, silent[n]))},
        )
        for point in points
    ]


def extend_naming(
    points: Sequence[SweepPoint], naming: SweepNaming | None, defaults: Mapping[str, Scalar]
) -> SweepNaming:
    """The naming that holds for these points from now on: the old one, and a line for each parameter that is new."""
    first = naming is None
    old = naming or SweepNaming()
    bases, shown = dict(old.bases), list(old.shown)
    for name in sorted({name for point in points for name in point.params}):
        if name in bases or name in shown:
            continue
        values = [point.params.get(name) for point in points]
        constant = all(same_value(value, values[0]) for value in values) and values[0] is not None
        if first and constant and name not in defaults and values[0] is not None:
            bases[name] = values[0]
        else:
            shown.append(name)
    return SweepNaming(bases, tuple(sorted(shown)), {**old.defaults, **defaults})


def point_label(params: Params, naming: SweepNaming) -> str:
    """The part of a name that tells this point from the others; empty if nothing varies."""
    parts = []
    for name in sorted({*params, *naming.bases}):
        if name not in params:
            parts.append(f"no-{name}")
        elif name not in naming.bases or not same_value(params[name], naming.bases[name]):
            parts.append(_label_part(name, _name_safe(format_value(params[name]))))
    return "_".join(parts)


def _label_part(name: str, value: str) -> str:
    """lr0.1, but model-muon: a word is set off from the name in front of it."""
    return f"{name}-{value}" if value[:1].isalpha() else f"{name}{value}"


def run_stems(points: Sequence[SweepPoint], base: str, experiment: str, naming: SweepNaming) -> list[str]:
    """The stem of each point; two points with one name are an InputError that shows both."""
    found: dict[str, SweepPoint] = {}
    for point in points:
        label = trial_label(point.search["trial"]) if point.search else point_label(point.params, naming)
        stem = _fit_name_length(base, label, point.seed, experiment)
        if stem in found:
            same_point = found[stem].params == point.params
            raise InputError(
                f"{experiment}/{stem} is described twice: {point.describe()}"
                + ("" if same_point else f", and {found[stem].describe()}"),
                hint="a run is described once" if same_point else "values whose texts differ by more than their type",
                place=point.place,
            )
        found[stem] = point
    return list(found)


def same_value(a: object, b: object) -> bool:
    """Equal as parameters: 1, 1.0 and true are three values."""
    return type(a) is type(b) and a == b


def _name_safe(text: str) -> str:
    """A value inside a name, where it may also begin with a sign or a dot: what no file system minds is kept."""
    return make_slug(f"x{text}")[1:]


def _fit_name_length(base: str, text: str, seed: int | None, experiment: str) -> str:
    """Base, label and seed within the limits of names; a long label is cut and its hash keeps it apart."""
    tail = "" if seed is None else f"_{seed}"
    whole = f"{base}_{text}{tail}" if text else f"{base}{tail}"
    room = min(MAX_COMPONENT, MAX_NAME - 1 - len(experiment))
    if len(whole) <= room:
        return whole
    keep = room - len(base) - len(tail) - _HASH_LENGTH - 2
    if keep < 8:
        raise InputError(
            f"{experiment}/{base} leaves no room for parameters in names", hint="a shorter experiment or file name"
        )
    return f"{base}_{text[:keep].rstrip('._-')}-{hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]}{tail}"


_NAMING_FILE = re.compile(r"(?P<base>.+)\.(?P<number>\d+)\.json", re.ASCII)


def read_naming(home: str, experiment: str, base: str) -> tuple[int, SweepNaming | None]:
    """The newest record and its number; 0 and None for a sweep that was never submitted."""
    number = _newest_number(home, experiment, base)
    if number == 0:
        return 0, None
    record: dict[str, Any] = files.read_json(_naming_path(home, experiment, base, number)) or {}
    return number, SweepNaming(
        dict(record.get("bases", {})), tuple(record.get("shown", ())), dict(record.get("defaults", {}))
    )


def save_naming(home: str, experiment: str, base: str, number: int, naming: SweepNaming) -> None:
    """Keep a naming as the successor of record `number`, unless nothing in it is new."""
    _, kept = read_naming(home, experiment, base)
    if kept == naming:
        return
    files.make_dir(os.path.join(home, "sweeps", experiment))
    record = {"schema": 1, "bases": dict(naming.bases), "shown": list(naming.shown), "defaults": dict(naming.defaults)}
    created = files.create_exclusive(_naming_path(home, experiment, base, number + 1), files.to_json(record))
    if not created and read_naming(home, experiment, base)[1] != naming:
        raise InputError(
            f"another command has just described {experiment}/{base} differently", hint="submit it once more"
        )


def _newest_number(home: str, experiment: str, base: str) -> int:
    names = files.list_names(os.path.join(home, "sweeps", experiment))
    matches = [match for name in names if (match := _NAMING_FILE.fullmatch(name)) and match["base"] == base]
    return max((int(match["number"]) for match in matches), default=0)


def _naming_path(home: str, experiment: str, base: str, number: int) -> str:
    return os.path.join(home, "sweeps", experiment, f"{base}.{number}.json")
