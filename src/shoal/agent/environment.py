"""What the user's process finds in its environment, and how the step's command is completed."""

import json
import os
import re
import stat
import sys
from typing import Any, Dict, List, Mapping, Optional

from ..kernel import fence

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.]*)\}")
#: Between shoal's own processes; none of the program's business.
_INTERNAL = (
    "SHOAL_TOKEN",
    "SHOAL_FOLLOW",
    "SHOAL_ON",
    "SHOAL_SHELL_BASE",
    "SHOAL_COLLECT",
    "SHOAL_CLAIMING",
    "SHOAL_CONTAINER",
)
_SECRET_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)")
SECRETS_FILE = os.path.join("shoal", "secrets.env")


def for_run(
    spec: Mapping[str, Any], claim: fence.Claim, attempt: int, resume_from: Optional[str], base: Mapping[str, str]
) -> Dict[str, str]:
    """The child's environment: the job's own, the user's secrets, what the experiment set, and shoal's variables."""
    env = {key: value for key, value in base.items() if key not in _INTERNAL}
    env.update(read_secrets(base))
    env.update(spec.get("env") or {})
    name = "%s/%s" % (spec["experiment"], spec["stem"])
    seed = spec.get("seed")
    env.update(
        SHOAL_RUN=name,
        SHOAL_EXPERIMENT=spec["experiment"],
        SHOAL_STEP=spec["step"],
        SHOAL_SEED="" if seed is None else str(seed),
        SHOAL_ATTEMPT=str(attempt),
        SHOAL_OUTPUT_DIR=claim.output_dir,
        SHOAL_RESUME_FROM=resume_from or "",
        SHOAL_START_FROM=spec.get("start_from") or "",
        SHOAL_PARENT_DIR=spec.get("parent_dir") or "",
        SHOAL_PARAMS=json.dumps(spec.get("params") or {}, sort_keys=True),
        SHOAL_PROGRESS=os.path.join(claim.output_dir, "progress"),
        WANDB_RUN_ID=spec["tracker_id"],
        WANDB_NAME=name,
        WANDB_RUN_GROUP=spec["experiment"],
        WANDB_RESUME="allow",
        PYTHONUNBUFFERED="1",
    )
    env.setdefault("WANDB_DIR", claim.output_dir)
    policy = spec.get("survive") or {}
    if policy.get("warn_s"):
        env.update(
            SHOAL_STOP_FILE=os.path.join(claim.output_dir, "stop-%d" % attempt),
            SHOAL_WARN_S=str(policy["warn_s"]),
            SHOAL_WARN_BY=policy["tell"],
        )
    return env


def text_of(value: Any) -> str:
    """A parameter's value as the program gets it: in a placeholder, in a flag, and in the run's name."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def complete(words: List[str], values: Mapping[str, str]) -> List[str]:
    """Fill {seed}, {lr}, {output_dir} and the like into the words of a command; `{{` and `}}` stand for braces."""
    return [_fill(word, values) for word in words]


def command_words(command: List[str], args: List[str], params: Mapping[str, Any]) -> List[str]:
    """The command with a run's parameters in it, and its arguments."""
    return [*complete(command, {name: text_of(value) for name, value in params.items()}), *args]


def _fill(word: str, values: Mapping[str, str]) -> str:
    parts = re.split(r"(\{\{|\}\})", word)
    filled = [
        part[0] if part in ("{{", "}}") else _PLACEHOLDER.sub(lambda m: values.get(m.group(1), m.group(0)), part)
        for part in parts
    ]
    return "".join(filled)


def read_secrets(base: Mapping[str, str]) -> Dict[str, str]:
    """NAME=value lines of the user's secrets file, which only the user may read; anything else about it is ignored.

    `export` before a line is fine. Secrets reach a job this way and no other: never through its script, its arguments,
    Slurm or the run's record.
    """
    config = base.get("XDG_CONFIG_HOME") or os.path.join(base.get("HOME") or os.path.expanduser("~"), ".config")
    path = os.path.join(config, SECRETS_FILE)
    try:
        with open(path) as file:
            mode = os.fstat(file.fileno())
            if mode.st_uid != os.getuid() or stat.S_IMODE(mode.st_mode) & 0o077:
                sys.stderr.write("shoal: %s is not read: other people could read it (chmod 600 it)\n" % path)
                return {}
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    found = (_SECRET_LINE.match(line) for line in lines)
    return {match.group(1): match.group(2).strip().strip("\"'") for match in found if match}
