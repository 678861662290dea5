"""What must not leave this machine in a script, an argument list, a record or Slurm's copy of the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shoal.errors import InputError
from shoal.kernel.lease import VARIABLE as LEASE_VARIABLE
from shoal.model import RunSpec

_SECRET_NAME = re.compile(
    r"(API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|_KEY$|_PAT$|JWT)", re.IGNORECASE
)
#: Names that only look secret.
_HARMLESS = re.compile(
    r"^(SSH_AUTH_SOCK|TOKENIZERS_PARALLELISM|.*TOKENIZER.*|.*MAX_TOKENS.*|.*NUM_TOKENS.*|.*KEYMAP.*)$"
)
_LEAST_LENGTH = 8


def is_secret(name: str) -> bool:
    """Whether a variable's name says that its value is nobody else's business."""
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS.match(name)


def split(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The environment that may travel, and the names of what stays here."""
    kept = {name: value for name, value in environ.items() if not is_secret(name)}
    return kept, sorted(name for name, value in environ.items() if is_secret(name) and value)


def secret_values(environ: Mapping[str, str]) -> dict[str, str]:
    """The secrets of this environment, value -> name; values too short to be one are left out."""
    return {value: name for name, value in environ.items() if len(value) >= _LEAST_LENGTH and is_secret(name)}


def refuse_leaks(spec: RunSpec, secrets: Mapping[str, str]) -> None:
    """Refuse a run whose arguments or settings contain one of these secrets (value -> name)."""
    places = [("an argument", word) for word in (*spec.command, *spec.args)]
    places += [(f"the variable {name}", value) for name, value in spec.env.items()]
    places += [("an sbatch flag", word) for word in spec.flags]
    for place, text in places:
        for value, name in secrets.items():
            if value in text:
                raise InputError(
                    f"{place} of {spec.name} contains the value of {name}, which would be written to disk",
                    hint=f"let the program read ${name} itself; {where_to_put(name)}",
                )


def where_to_put(name: str) -> str:
    """A command that puts a variable where jobs, and nobody else, can read it."""
    folder = '"${XDG_CONFIG_HOME:-$HOME/.config}/shoal"'
    return f'(umask 077; mkdir -p {folder}; echo "{name}=${name}" >> {folder}/secrets.env)'


def for_job(environ: Mapping[str, str]) -> dict[str, str]:
    """What a job inherits: no secrets, and of shoal's own variables only what both sides must agree on."""
    own = {name: value for name, value in environ.items() if not name.startswith("SHOAL_") or name == LEASE_VARIABLE}
    return split(own)[0]
