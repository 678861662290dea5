"""Writes the reference pages and llms.txt from the code: `.venv/bin/python docs/make_reference.py`.

Names, types, defaults and codes come from the parsers and tables that shoal itself uses. Meanings come from the tables
of the pages that explain them, so that each is written once; a name without a meaning is an error.
`--check` writes nothing and returns 1 if a page is out of date; tests/test_reference.py does that.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from shoal import errors
from shoal.cli import COMMANDS
from shoal.cli.parser import CommandParser
from shoal.describe import launches, project, steps, tables
from shoal.describe import search as search_tables
from shoal.describe.cluster import ClusterTable, MatchTable, PriceTable, QosTable, SshTable
from shoal.describe.sweep_file import EarlyStoppingTable
from shoal.kernel.causes import _EXIT_CODE_TEXTS, KIND_TEXTS
from shoal.model import CAUSES, STATE_GROUPS, STATE_TABLE

DOCS = Path(__file__).parent
ROOT = DOCS.parent
NOTE = "<!-- Written by docs/make_reference.py. Change the code or the page that explains it, not this file. -->\n"
_ROW = re.compile(r"^\| (.+?) \| (.*) \|$", re.MULTILINE)
_NAME = re.compile(r"`([^`]+)`")
_ERROR = re.compile(r"[├└]── (\w+) +(\d+)? +(\S.*)$", re.MULTILINE)

#: Variables that a user may set, by what they are for. Those that a run gets are in docs/shoal-toml.md.
USER_VARIABLES = {
    "SHOAL_ON": "Cluster profile to use, as `--on`",
    "SHOAL_HOME": "State directory to use instead of `.shoal/` in the project",
    "SHOAL_DEBUG": "Any value: show a traceback with an error, as `--debug`",
    "SHOAL_NO_PROGRESS": "Any value: no progress lines on a terminal",
    "SHOAL_POLL_S": "Seconds between two `squeue` calls of all watchers of a project together (default: 10, at least 1)",
    "SHOAL_LOOK_S": "Seconds between two updates of a view that stays open",
    "SHOAL_SCRATCH": "Node-local directory for data, before the profile's `scratch`",
    "SHOAL_SCRATCH_LIMIT": "Largest amount that data may use in the node-local directory",
    "SHOAL_SAMPLE_S": "Seconds between two usage samples of a job; 0 takes none (default: 10)",
    "SHOAL_SAMPLER_S": "Seconds that a job waits for the sampler of a search",
    "SHOAL_SEARCH_PYTHON": "Python that has the packages of the samplers of a search",
    "SHOAL_MLFLOW_S": "Seconds that a job waits for an MLflow server",
    "SHOAL_SSH_HELLO_S": "Seconds that a command waits for the first answer over ssh",
    "SHOAL_SANDBOX_HOME": "Directory of the sandboxes",
    "SHOAL_SANDBOX_SLURM": "Slurm release that a sandbox runs, as `--slurm`",
    "SHOAL_DEBIAN_MIRROR": "Mirror that `sandbox up --slurm` gets Debian's packages from",
}
#: Variables of a run that docs/shoal-toml.md does not explain.
RUN_VARIABLES = {
    "SHOAL_PARAMS": "Parameters of the run as JSON",
    "SHOAL_PARENT_DIR": "Output directory of the run that `start_from` or `after` names, or empty",
    "SHOAL_NODES": "Number of nodes of the run",
    "SHOAL_GPUS_PER_NODE": "GPUs on each node of the run",
    "SHOAL_CPUS_PER_NODE": "CPUs on each node of the run",
    "SHOAL_WARN_S": "Seconds of warning before the time limit, where `warn_before` is set",
    "SHOAL_WARN_WITH": "`signal` or `file`, where `warn_before` is set",
    "SHOAL_STOP_FILE": "File that appears before the time limit, where `warn_before` is set",
    "SHOAL_SLOT": "Number of the run's slot in its pack",
    "SHOAL_GPU_SHARE": "Share of a GPU that the run has in a pack",
    "SHOAL_GPU_MEMORY_FRACTION": "Share of the GPU's memory that the run may use in a pack",
    "SHOAL_GPU_MEMORY_BYTES": "The same in bytes, where the GPU's memory is known",
    "SHOAL_REPLICA": "Number of the replica, with fault-tolerant replicas",
    "SHOAL_REPLICAS": "Number of replicas",
    "SHOAL_MIN_REPLICAS": "Smallest number of replicas that trains",
    "SHOAL_DATA": "Dataset directory on the node, for the command of `shoal data stage`",
    "SHOAL_NOTIFY_EVENT": "For the `command` of `[notify]`: the event",
    "SHOAL_NOTIFY_EXPERIMENT": "For the `command` of `[notify]`: the experiment",
    "SHOAL_NOTIFY_TEXT": "For the `command` of `[notify]`: the text",
}
#: Names in the source that are for shoal's own processes and tests, or are no variables. They may change at any time.
INTERNAL_VARIABLES = frozenset(
    """SHOAL_ALLOCATION SHOAL_CLAIMING SHOAL_CODE SHOAL_COLLECT SHOAL_COMMAND SHOAL_CONTAINER SHOAL_DATA_SOURCES
    SHOAL_DEVICES SHOAL_DISK_S SHOAL_FAILPOINT SHOAL_FOLLOW SHOAL_GRACE_S SHOAL_IMPORTING_SCRIPT SHOAL_LEASE
    SHOAL_LEASE_S SHOAL_OWED_S SHOAL_PARENT SHOAL_PREFIX SHOAL_PROBE_BATCHES SHOAL_PROBE_DIR SHOAL_RANK_GROUP SHOAL_ROOT
    SHOAL_SANDBOX_MARK SHOAL_SCREEN SHOAL_SHELL_BASE SHOAL_STEPS SHOAL_SUBMIT_GRACE_S SHOAL_TOKEN SHOAL_TRACKER_VARIABLES
    SHOAL_WATCH""".split()
)

#: Types that a function reads, in words.
READ_TYPES = {
    tables.Words: "string or list of strings",
    tables.Environment: "table of strings",
    tables.Seconds: 'duration, such as `"90m"`',
    tables.SlurmTime: 'duration, such as `"3d"`',
    tables.Memory: 'amount, such as `"64G"`',
    launches.FloatSeconds: 'duration, such as `"30s"`',
    launches.Launch: "launch mode, or table `launch`",
    launches.Container: "image, or table `container`",
    launches.Arguments: "list of strings, or the name of a set",
    project.VariableName: '`"$NAME"` of an environment variable',
    project.Program: "string",
    steps.RequestSettings: "table `request`",
    steps.Gpus: "whole number, or a share below 1",
    steps.DataSets: "table of paths, or of tables `data`",
    steps.Recovery: "table `recovery`",
}
READ_NAMES = {
    "_read_partition": "string, or a table by GPU type",
    "_read_qos": "string, or a table",
    "_read_lines": "string or list of strings",
    "_read_amount": "number or duration",
}
PLAIN_TYPES = {str: "string", int: "whole number", float: "number", bool: "`true` or `false`", Any: "any value"}


def main(argv: list[str]) -> int:
    outdated = [name for name, text in pages().items() if _text(DOCS / name) != text]
    if "--check" in argv:
        print("\n".join(outdated), end="\n" if outdated else "")
        return 1 if outdated else 0
    for name in outdated:
        (DOCS / name).write_text(pages()[name], "utf-8")
        print(f"wrote docs/{name}")
    return 0


def pages() -> dict[str, str]:
    """Every generated file below docs/, as it should be."""
    return {
        "reference-commands.md": commands_page(),
        "reference-settings.md": settings_page(),
        "reference-environment.md": environment_page(),
        "reference-states.md": states_page(),
        "decisions/README.md": _index(
            "Decisions", "Each page has the context, the choice and its price.", "decisions", "md"
        ),
        "schema/README.md": _index(
            "JSON schemas", "What `--json` prints, one schema per command; the tests compare them.", "schema", "json"
        ),
        "llms.txt": llms_text(),
    }


# -- commands ---------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    parts = [
        f"# Commands\n\n{NOTE}\n`shoal COMMAND --help` prints the same. `--debug`, before `--`, adds a traceback to an error. "
        "Exit codes are in [states, causes and exit codes](reference-states.md#exit-codes)."
    ]
    overview = [(f"[{name}](#shoal-{name})", text) for group in COMMANDS.values() for name, text in group.items()]
    parts.append(_table(("command", ""), overview))
    for name in (name for group in COMMANDS.values() for name in group):
        module = import_module(f"shoal.cli.{name}")
        parser = CommandParser(f"shoal {name}", module.__doc__)
        module.configure(parser)
        parts += [f"## shoal {name}", *_paragraphs(module.__doc__ or ""), *_flags(parser)]
        for action, (inner, text) in _actions(parser).items():
            parts += [f"### shoal {name} {action}", text, *_flags(inner)]
    return "\n\n".join(parts) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    """A docstring as Markdown: lines of commands as a block, and all else as text."""
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.split("\n")
        if any(line.lstrip().startswith(("shoal ", "eval ", "source ")) for line in lines):
            yield "```\n" + "\n".join(line.rstrip() for line in lines) + "\n```"
        else:
            yield re.sub(r"([<*_])", r"\\\1", " ".join(line.strip() for line in lines))


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    for group in parser._action_groups:
        rows = [(_spelling(action), _cell(action.help or "")) for action in group._group_actions if _is_shown(action)]
        if not rows:
            continue
        if group.title not in ("positional arguments", "options", "optional arguments"):
            yield f"**{(group.title or '').capitalize()}.** {group.description or ''}".strip()
        yield _table(("argument" if group.title == "positional arguments" else "flag", ""), rows)


def _is_shown(action: argparse.Action) -> bool:
    hidden = action.help is argparse.SUPPRESS or isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    return not hidden


def _spelling(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar or ())
    if not action.option_strings:
        return f"`{_bar(metavar or action.dest)}`"
    if not metavar and action.choices is not None:
        metavar = "{" + ",".join(map(str, action.choices)) + "}"
    value = "" if action.nargs == 0 else metavar or action.dest.upper()
    return ", ".join(f"`{flag} {_bar(value)}`" if value else f"`{flag}`" for flag in action.option_strings)


def _actions(parser: argparse.ArgumentParser) -> dict[str, tuple[argparse.ArgumentParser, str]]:
    found = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            found.update({name: (inner, helps.get(name, "")) for name, inner in action.choices.items()})
    return found


# -- settings ---------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    step, cluster = _meanings("shoal-toml.md", "## Steps"), _meanings("clusters.md", "## A profile")
    parts = [
        f"# Settings\n\n{NOTE}\nEvery key of `shoal.toml` with its type and default. [shoal.toml](shoal-toml.md) and "
        "[clusters](clusters.md) have examples; an unknown key is an error with its line and the nearest key. "
        "Keys of sweep files are in [sweeps](sweeps.md)."
    ]
    for title, text, table, meanings in (
        ("Top level", "Before all tables.", project.ProjectTable, {}),
        ("[steps.NAME]", "A kind of work.", steps.StepTable, step),
        ("request", "In a step.", steps.RequestTable, {}),
        ("launch", "In a step; which keys a mode takes is in [launch](launch.md).", launches.LaunchTable, {}),
        ("container", "In a step or a profile ([containers](containers.md)).", launches.ContainerTable, {}),
        ("data", "In a step: `data = { NAME = { path = ..., wait = ... } }` ([data](data.md)).", steps.DataTable, {}),
        ("recovery", "In a step ([sweeps](sweeps.md)).", steps.RecoveryTable, {}),
        ("partition_after", "In `recovery`.", steps.PartitionAfter, {}),
        ("smoke", "In a step ([smoke](smoke.md)).", steps.Smoke, {}),
        ("budget", "In a step ([sweeps](sweeps.md#many-runs-a-few-jobs)).", steps.BudgetTable, {}),
        ("[clusters.NAME]", "A cluster profile; also in the user's `config.toml`.", ClusterTable, cluster),
        ("[clusters.NAME.qos.QOS]", "What differs under a QOS.", QosTable, cluster),
        ("match", "In a profile.", MatchTable, {}),
        ("price", "In a profile ([hours](hours.md#cost-in-money)).", PriceTable, {}),
        ("ssh", "In a profile ([remote](remote.md)).", SshTable, {}),
        ("[status]", "Also in the user's `config.toml` ([looking](looking.md)).", tables.StatusTable, {}),
        ("[notify]", "Notifications ([looking](looking.md#being-told)).", project.Notify, {}),
        ("[search]", "In a sweep file ([search](search.md)).", search_tables.SearchTable, {}),
        ("[early_stopping]", "In a sweep file ([pack](pack.md#early-stopping)).", EarlyStoppingTable, {}),
    ):
        rows = [
            (
                f"`{field.encode_name}`",
                _cell(type_words(field.type)),
                _default(field),
                meanings.get(field.encode_name, ""),
            )
            for field in msgspec.structs.fields(table)
        ]
        if meanings and (missing := [row[0] for row in rows if not row[3]]):
            raise ValueError(f"no page explains {', '.join(missing)} of {title}")
        parts += [f"## {title}", text, _table(("key", "type", "default", "meaning")[: 4 if meanings else 3], rows)]
    return "\n\n".join(parts) + "\n"


def type_words(wanted: Any) -> str:
    """A declared type as a reader of the file would say it."""
    if get_origin(wanted) in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_words(kind) for kind in get_args(wanted) if kind is not type(None)))
    if get_origin(wanted) is Annotated:
        words = next((meta.description for meta in reversed(get_args(wanted)[1:]) if meta.description), None)
        base = type_words(get_args(wanted)[0])
        plain = words is None or words.startswith(("a string of one", "a string without", "at least one word"))
        return base if plain else _without_article(words or "")
    if wanted in READ_TYPES:
        return READ_TYPES[wanted]
    if (name := getattr(wanted, "__name__", "")) in READ_NAMES:
        return READ_NAMES[name]
    if get_origin(wanted) is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in get_args(wanted))
    if get_origin(wanted) is dict:
        return f"table of {_plural(type_words(get_args(wanted)[1]))}"
    if get_origin(wanted) in (list, tuple):
        return f"list: {type_words(get_args(wanted)[0])}"
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return "table"
    return PLAIN_TYPES[wanted]


def _without_article(words: str) -> str:
    return re.sub(r"^(?:an?) ", "", words)


def _plural(words: str) -> str:
    return {"string": "strings", "table": "tables", "any value": "values"}.get(words, f"values, each: {words}")


def _default(field: Any) -> str:
    if field.required:
        return "required"
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if value is None or isinstance(value, msgspec.Struct | launches.LaunchMode) or value in ((), [], {}, ""):
        return ""
    if field.encode_name != field.name and field.name.endswith("_s"):
        return f'`"{value}s"`'
    return _cell("`" + (str(value).lower() if isinstance(value, bool) else str(value)) + "`")


# -- environment ------------------------------------------------------------------------------------------------------


def environment_page() -> str:
    explained = _meanings("shoal-toml.md", "## What the program finds")
    clash = (set(RUN_VARIABLES) | set(USER_VARIABLES)) & set(explained)
    known = {*USER_VARIABLES, *RUN_VARIABLES, *explained, *INTERNAL_VARIABLES}
    names = source_variables()
    missing, gone = sorted(names - known), sorted({*USER_VARIABLES, *RUN_VARIABLES} - names)
    if clash or missing or gone:
        raise ValueError(f"explained twice: {sorted(clash)}; not explained: {missing}; no longer in the code: {gone}")
    parts = [
        f"# Environment variables\n\n{NOTE}",
        "## For commands\n\nSet these before a command, or export them.",
        _table(("variable", ""), [(f"`{name}`", text) for name, text in USER_VARIABLES.items()]),
        "Output also follows `NO_COLOR`, `FORCE_COLOR`, `COLUMNS`, `TERM=dumb` and `ACCESSIBLE=1` ([looking](looking.md#status)); "
        "the user's settings are in `$XDG_CONFIG_HOME/shoal/` (default: `~/.config/shoal/`).",
        "## In a run\n\nThe program of a run finds these.",
        _table(("variable", ""), [(f"`{name}`", text) for name, text in {**explained, **RUN_VARIABLES}.items()]),
        "Other variables that begin with `SHOAL_` are for shoal's own processes and may change at any time.",
    ]
    return "\n\n".join(parts) + "\n"


def source_variables() -> set[str]:
    """Names of variables in string literals of the source, without docstrings."""
    found: set[str] = set()
    for path in sorted((ROOT / "src" / "shoal").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.keyword) and node.arg and re.fullmatch(r"SHOAL_[A-Z_]+", node.arg):
                found.add(node.arg)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(r"SHOAL_[A-Z_]*[A-Z]", node.value):
                    found.add(node.value)
    return found


# -- states -----------------------------------------------------------------------------------------------------------


def states_page() -> str:
    states, causes = _meanings("exactly-once.md", "## States"), _meanings("exactly-once.md", "## Causes and reasons")
    groups = {state: [name for name, members in STATE_GROUPS.items() if state in members] for state in STATE_TABLE}
    exits = [("0", "success"), ("1", "any other error")]
    for name, code, text in _ERROR.findall(errors.__doc__ or ""):
        if code:
            if getattr(errors, name).exit_code != int(code):
                raise ValueError(f"errors.py says {code} for {name}, and its class another code")
            exits.append((code, text.partition("; carries")[0]))
    programs = [(f"`{code}`", text) for code, text in _EXIT_CODE_TEXTS.items()]
    return "\n\n".join(
        [
            f"# States, causes and exit codes\n\n{NOTE}",
            "## States\n\n`--state` of `status`, `watch` and `retry` takes these words, and the groups "
            + ", ".join(f"`{name}`" for name in STATE_GROUPS) + ".",
            _table(
                ("state", "groups", "meaning"),
                [(f"`{state}`", ", ".join(groups[state]), states[state]) for state in STATE_TABLE],
            ),
            "## Causes\n\nThe class of a failure: `cause` in `status --json`, and what `--cause` takes.",
            _table(("cause", "the run"), [(f"`{cause}`", causes[cause]) for cause in CAUSES]),
            "## Errors in logs\n\nWhat `shoal why` and `shoal logs --errors` recognise at the end of a log, in this order.",
            _table(("kind", "shown as"), [(f"`{kind}`", text) for kind, text in KIND_TEXTS.items()]),
            "## Exit codes\n\nOf every command.",
            _table(("code", "meaning"), sorted(exits, key=lambda row: int(row[0]))),
            "`shoal attach RUN -- COMMAND` returns the exit code of its command. A run's own exit code is that of its "
            "program; 128 + n means signal n, and these codes have a conventional meaning:",
            _table(("code", "meaning"), programs),
        ]
    ) + "\n"  # fmt: skip


# -- shared -----------------------------------------------------------------------------------------------------------


def llms_text() -> str:
    """The pages of docs/README.md as https://llmstxt.org has it: sections, links, one line each."""
    lines = [
        "# shoal",
        "",
        "> Run many training experiments on Slurm, or on a machine without Slurm: named, checked, submitted exactly once, "
        "resumed from checkpoints, and found again afterwards.",
    ]
    for section in (DOCS / "README.md").read_text("utf-8").split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        rows = re.findall(r"^\| \[(.+?)\]\((\S+?)\) \| (.+) \|$", body, re.MULTILINE)
        if rows:
            lines += ["", f"## {title}", "", *(f"- [{name}]({link}): {text}" for name, link, text in rows)]
    return "\n".join(lines) + "\n"


def _index(title: str, text: str, folder: str, suffix: str) -> str:
    names = sorted(path.name for path in (DOCS / folder).glob(f"*.{suffix}") if path.name != "README.md")
    heads = {name: _text(DOCS / folder / name).partition("\n")[0].removeprefix("# ") for name in names}
    items = [f"- [{heads[name] if suffix == 'md' else name}]({name})" for name in names]
    return f"# {title}\n\n{NOTE}\n{text}\n\n" + "\n".join(items) + "\n"


def _meanings(page: str, heading: str) -> dict[str, str]:
    """What the first table below a heading says about each `name` of its first column."""
    section = _text(DOCS / page).split(f"\n{heading}\n")[1].split("\n## ")[0]
    found = {}
    for names, text in _ROW.findall(section):
        text = re.sub(r"\]\(#", f"]({page}#", text)
        found.update({name: text for name in _NAME.findall(names)})
    return found


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *(row[: len(heads)] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace("|  |", "| |")


def _cell(text: str) -> str:
    return _bar(re.sub(r"<(\w+)>", r"`<\1>`", " ".join(text.split()))).replace("%%", "%")


def _bar(text: str) -> str:
    return text.replace("|", "\\|")


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
