"""Check scripts: read them, ask the cluster once, apply the rules. `shoal doctor` calls this."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.batch import SbatchOption, ScriptText, decode_text, read_text
from shoal.clusters import ClusterFacts, check_with_sbatch, read_cluster
from shoal.doctor import rules
from shoal.doctor.finding import SEVERITY_ORDER, CheckFacts, FileAccess, Finding, apply_rules
from shoal.doctor.geometry import RequestGeometry, read_geometry
from shoal.doctor.job import JobFacts
from shoal.doctor.known_findings import Baseline, CodeChoice, read_ignore_comments
from shoal.doctor.nearest import apply_changes, as_flags, closest_node_kind, propose_changes, qos_mismatches
from shoal.doctor.script import BatchScript, read_batch_script
from shoal.errors import DiskError, InputError

__all__ = [
    "ScriptCheck",
    "TrainingInputs",
    "check_scripts",
    "check_text",
    "facts_without_script",
    "find_files",
]
_SUFFIXES = (".sh", ".slurm", ".sbatch", ".sub", ".batch", ".job", ".bash")
_SKIPPED = frozenset({".git", ".venv", "node_modules", "__pycache__", ".shoal", "outputs"})


_MAX_PROBE_BYTES = 64 * 1024


class TrainingInputs(NamedTuple):
    """What a person tells about the training, for geometry and batch size."""

    batch_size: int | None = None
    learning_rate: float | None = None
    workers: int | None = None


_NO_INPUTS = TrainingInputs()
#: Shebang and directives of a script -> what Slurm says to them, and what it would accept.
TestOnlyAnswers = dict[tuple[str, ...], tuple[str | None, str | None]]


class ScriptCheck(NamedTuple):
    """One script, its findings, and how much of it could be read."""

    script: BatchScript
    findings: list[Finding]
    facts: CheckFacts
    #: Findings that comments, --select, --ignore or a baseline have taken out.
    ignored: int = 0

    @property
    def worst(self) -> str | None:
        return min((finding.severity for finding in self.findings), key=lambda word: SEVERITY_ORDER[word], default=None)


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The scripts that paths stand for: files as they are; of folders, what looks like a script for sbatch."""
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = [one for one in _walk(path) if one.suffix in _SUFFIXES or _has_directives(one)]
            if not inside:
                raise InputError(f"no batch script in {path}", hint=f"ls {path}")
            found.update(dict.fromkeys(inside))
        elif path.exists() or path.is_symlink():
            if not path.is_file():
                raise InputError(f"{path} is not a regular file", hint=f"ls -l {path}")
            found[path] = None
        else:
            raise InputError(f"no such file: {path}", hint=f"ls {path.parent}")
    return list(found)


def _walk(folder: Path) -> list[Path]:
    found: list[Path] = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and not name.startswith("backup_"))
        found += [Path(root) / name for name in sorted(files) if ".fixed." not in name]
    return [path for path in found if path.is_file()]


def _has_directives(path: Path) -> bool:
    if path.suffix not in ("", ".txt", ".tpl", ".py", ".csh", ".tcsh", ".pl", ".R", ".jl"):
        return False
    try:
        with path.open("rb") as file:
            head = file.read(2048)
    except OSError:
        return False
    return head.startswith(b"#!") and b"\n#SBATCH" in head


def check_scripts(
    paths: Sequence[Path],
    environ: Mapping[str, str],
    *,
    user: str = "",
    ask: bool = True,
    inputs: TrainingInputs = _NO_INPUTS,
    steps: frozenset[str] = frozenset(),
) -> tuple[list[ScriptCheck], ClusterFacts | None]:
    """Examine scripts, and with `ask` against the Slurm that answers here. DiskError for a file that cannot be read."""
    cluster = ask_cluster(environ, user) if ask else None
    asked: TestOnlyAnswers = {}
    examined = []
    for path in paths:
        try:
            text = read_text(path)
        except OSError as error:
            raise DiskError(f"{path} cannot be read: {error.strerror or error}", hint=f"ls -l {path}") from None
        examined.append(check_script(text, path, cluster, environ, inputs=inputs, steps=steps, asked=asked))
    return examined, cluster


def ask_cluster(environ: Mapping[str, str], user: str) -> ClusterFacts | None:
    """All that rules look at, of the cluster that answers here; None when there is no Slurm."""
    facts = read_cluster(environ, "nodes")
    if not facts.node_kinds:
        return None
    facts = read_cluster(environ, "settings", "partitions", "reservations", "user", user=user, known=facts)
    return read_cluster(environ, "qos", known=facts) if facts.qos else facts


def check_script(
    text: ScriptText,
    path: Path,
    cluster: ClusterFacts | None,
    environ: Mapping[str, str],
    *,
    inputs: TrainingInputs = _NO_INPUTS,
    files: FileAccess | None = None,
    steps: frozenset[str] = frozenset(),
    asked: TestOnlyAnswers | None = None,
) -> ScriptCheck:
    """One script. With a cluster, Slurm itself is asked as well, and a refusal comes with what it would accept.

    `asked` remembers Slurm's answers between scripts: a folder of a hundred variants asks it a few times.
    """
    rules.load_rules()
    script = read_batch_script(text, str(path), steps=steps | {"train", "posttrain", "evaluate"})
    if "clusters" in script.options:
        cluster = None  # it runs on another cluster than the one that answers here
    facts = CheckFacts(script, files or DiskFiles(path), cluster, None, None, *inputs)
    if cluster is not None and script.kind == "batch" and script.directives.options:
        key = tuple(text.lines[number - 1] for number in (1, *script.directives.lines))
        known = {} if asked is None else asked
        if key not in known:
            known[key] = _ask_slurm(facts, cluster, environ)
        refusal, nearest = known[key]
        facts = facts._replace(refusal=refusal, nearest=nearest)
    findings, comments = apply_rules(facts), read_ignore_comments(script)
    kept = [finding for finding in findings if not comments.covers(finding)]
    return ScriptCheck(script, kept, facts, len(findings) - len(kept))


def take_out(check: ScriptCheck, choice: CodeChoice, baseline: Baseline | None) -> ScriptCheck:
    """The check without findings that --select and --ignore leave out, or that the baseline knows."""
    kept = [
        finding
        for finding in check.findings
        if not choice.covers(finding) and not (baseline is not None and baseline.covers(finding, check.script))
    ]
    return check._replace(findings=kept, ignored=check.ignored + len(check.findings) - len(kept))


def check_text(text: str, path: str, *, files: FileAccess | None = None) -> list[Finding]:
    """Findings on a script that is not on disk yet, without a cluster."""
    return check_script(
        decode_text(text.encode("utf-8", "surrogateescape")), Path(path), None, {}, files=files
    ).findings


def examine_job(job: JobFacts, files: FileAccess) -> list[Finding]:
    """Findings on a job that was not read from a script, without a cluster."""
    rules.load_rules()
    return apply_rules(CheckFacts(job, files))


def facts_without_script(inputs: TrainingInputs) -> CheckFacts:
    """Facts without a script, for numbers by construction."""
    path = Path("train.sh")
    return CheckFacts(read_batch_script(decode_text(b""), str(path)), DiskFiles(path), None, None, None, *inputs)


def _ask_slurm(facts: CheckFacts, cluster: ClusterFacts, environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """(what `sbatch --test-only` objects to, flags with which it accepts), each None when there is none.

    Where it or our own reading refuses, requests that fit are tried until Slurm accepts one.
    """
    job = facts.job
    answer = check_with_sbatch([], environ, job.path)
    refusal = answer.objection if answer.accepted is False else None
    if refusal is None and _satisfies(job.geometry, job.options, cluster):
        return None, None
    for changes in propose_changes(job.geometry, job.options, cluster):
        options = apply_changes(job.options, changes)
        flags = as_flags(changes)
        if (
            _satisfies(read_geometry(options), options, cluster)
            and check_with_sbatch(flags, environ, job.path).accepted
        ):
            return refusal, " ".join(flags)
    return refusal, None


def _satisfies(geometry: RequestGeometry, options: Mapping[str, SbatchOption], cluster: ClusterFacts) -> bool:
    best = closest_node_kind(geometry, options, cluster)
    return best is not None and not best[1] and not qos_mismatches(geometry, options, cluster)


def as_record(finding: Finding) -> dict[str, object]:
    """A finding for machines."""
    record = msgspec.to_builtins(finding)
    edits = record.pop("edits")
    return {**record, "fixable": bool(edits)}


class DiskFiles:
    """Relative paths begin where the person stands, or beside the script: sbatch is called from either."""

    def __init__(self, script: Path, here: Path | None = None) -> None:
        self.bases = [here or Path.cwd(), script.parent]

    def folder_exists(self, path: str) -> bool | None:
        """None for a path on another machine: nothing of it exists here, not even its first folder."""
        if os.path.isabs(path):
            first = "/" + path.strip("/").split("/")[0]
            return os.path.isdir(path) if os.path.isdir(first) else None
        return any((base / path).is_dir() for base in self.bases)

    def text(self, path: str) -> str | None:
        for base in self.bases:
            try:
                file = base / path
                if file.is_file() and file.stat().st_size <= _MAX_PROBE_BYTES:
                    return file.read_bytes().decode("utf-8", "replace")
            except (OSError, ValueError):
                continue
        return None
