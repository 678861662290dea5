"""D: does sbatch read each #SBATCH line, and does it mean what it seems to mean?"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from shoal.batch import SLURM_MAX_BYTES, ShellCommand, is_template, known_options
from shoal.doctor.edits import option_edit
from shoal.doctor.finding import CheckFacts, RuleHit, ScriptEdit, rule, text_rule
from shoal.doctor.known_findings import read_ignore_comments
from shoal.doctor.script import BatchScript

_PATHS = ("output", "error", "chdir", "input")
_FREE_TEXT_OPTIONS = frozenset({"job-name", "comment", "mail-user", "wckey", "licenses"})
_REQUIRED_OPTIONS = frozenset({"time", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "mem", "mem-per-cpu"})
_SLURM_PATTERNS = {"SLURM_JOB_ID": "%j", "SLURM_JOBID": "%j", "SLURM_JOB_NAME": "%x", "SLURM_ARRAY_JOB_ID": "%A",
                   "SLURM_ARRAY_TASK_ID": "%a"}  # fmt: skip
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_SPACED_OPTION = re.compile(r"(--?[A-Za-z][\w-]*)(?:\s+=\s*|\s*=\s+)(?=\S)")
#: Removed or never part of sbatch, and what takes their place.
_RENAMED_OPTIONS = {"workdir": "chdir", "share": "oversubscribe", "cores": "cpus-per-task",
             "cpu_bind": "srun --cpu-bind",
             "gpu": "gpus-per-node or gres=gpu:", "ntask": "ntasks", "cpus": "cpus-per-task", "memory": "mem",
             "queue": "partition", "walltime": "time", "num-nodes": "nodes"}  # fmt: skip
#: Options that site plugins add to sbatch (containers above all); unknown to Slurm itself and right where they exist.
_PLUGIN_PREFIXES = (
    "image",
    "module",
    "volume",
    "container-",
    "no-container-",
    "x11",
    "auks",
    "spank-",
    "tmpdir",
    "qos-",
    "multi-",
    "lustre",
    "private-",
)


@text_rule("D01", "error", "a directive below the first command", lower=("hint",))
def directive_after_command(script: BatchScript) -> Iterator[RuleHit]:
    read = script.directives.last()
    if not read and any(_writes_batch_script(command) for command in script.commands):
        return  # a script that writes batch scripts, and is none
    for one in script.directives.ignored:
        if one.why != "late" or not one.options:
            continue  # sbatch's own messages, pasted into the script, begin with #SBATCH too
        first = script.directives.first_command
        known = one.options and all(
            option.name in read and read[option.name].value == option.value for option in one.options
        )
        yield RuleHit(
            one.line,
            f"this directive stands below the first command (line {first}), so sbatch does not read it",
            "it repeats what the header says" if known else "the job starts without what this line asks for",
            "move it up, below the other #SBATCH lines",
            "hint" if known else None,
            (ScriptEdit("drop", one.line), *(() if known else (ScriptEdit("header", new=one.text.rstrip()),))),
        )


def _writes_batch_script(command: ShellCommand) -> bool:
    return any(one.heredoc is not None and "#SBATCH" in one.heredoc.body for one in command.redirects)


@text_rule("D02", "error", "a directive that is only a comment", lower=("warning",))
def commented_directive(script: BatchScript) -> Iterator[RuleHit]:
    given = {option.name for option in script.directives.options}
    for one in script.directives.ignored:
        if one.why == "late" or not one.options:
            continue
        # Two # are how people switch a line off, and a blank often is; it is a slip where it holds for all lines.
        if one.why in ("disabled", "spaced") and (
            given or any(other.why == "late" for other in script.directives.ignored)
        ):
            missing = [option.name for option in one.options if option.name not in given]
            if one.why == "spaced" and missing:
                yield RuleHit(
                    one.line,
                    f"this line is a comment because of the blank before SBATCH, and nothing else sets --{missing[0]}",
                    "sbatch does not read it",
                    "#SBATCH without the blank, or ##SBATCH to switch it off visibly",
                    "warning",
                )
            continue
        fixed = "#SBATCH " + re.sub(r"^\s*#+\s*[A-Za-z]+\s*:?\s*", "", one.text).rstrip()
        what = "is indented" if one.why == "indented" else "is not spelled #SBATCH"
        yield RuleHit(
            one.line,
            f"this directive {what}, so sbatch takes it for a comment",
            "the job starts without what this line asks for",
            f"{fixed}   # at the beginning of the line",
            None,
            (ScriptEdit("drop", one.line), ScriptEdit("header", new=fixed)),
        )


@text_rule("D03", "error", "DOS line ends")
def dos_line_endings(script: BatchScript) -> Iterator[RuleHit]:
    text = script.text
    if text.crlf and not text.encoding.startswith("utf-16"):
        yield RuleHit(
            text.first_crlf,
            f"{text.crlf} line{'s end' if text.crlf > 1 else ' ends'} as on DOS (CR LF)",
            "sbatch refuses the script: it contains DOS line breaks",
            f"sed -i 's/\\r$//' {script.path}",
            None,
            (ScriptEdit("replace", 0, "\r", ""),),
        )


@text_rule("D04", "error", "no shebang", lower=("hint",))
def no_shebang(script: BatchScript) -> Iterator[RuleHit]:
    if script.kind != "batch" or script.text.encoding.startswith("utf-16"):
        return
    lines = script.text.lines
    if script.text.encoding == "utf-8-sig":
        yield RuleHit(
            1,
            "the file begins with a byte order mark, so its first two bytes are not #!",
            "sbatch refuses it: this does not look like a batch script",
            f"sed -i '1s/^\\xEF\\xBB\\xBF//' {script.path}",
            None,
            (ScriptEdit("replace", 1, "\ufeff", ""),),
        )
    elif not lines[0].startswith("#!"):
        other = next((number for number, line in enumerate(lines, start=1) if line.lstrip().startswith("#!")), None)
        lower = () if other is None else (ScriptEdit("drop", other),)
        yield RuleHit(
            1,
            "the first line is not a shebang" + (f"; it stands in line {other}" if other else ""),
            "sbatch refuses it: this does not look like a batch script",
            "#!/bin/bash   # as the very first line",
            # Without a single directive it may be a helper that nobody submits.
            None if script.directives.options or script.directives.ignored else "hint",
            (*lower, ScriptEdit("top", new=lines[other - 1].strip() if other else "#!/bin/bash")),
        )


@rule("D05", "error", "a shell variable in a directive", lower=("warning",))
def variable_in_directive(facts: CheckFacts) -> Iterator[RuleHit]:
    for option in facts.job.header:
        value = option.value or ""
        if "$" not in value and "`" not in value:
            continue
        names_only = option.name in _FREE_TEXT_OPTIONS
        path = option.name in _PATHS
        in_name = path and not {"$", "`"} & set(os.path.dirname(value))
        effect = (
            "the file has this name, the same for all jobs"
            if in_name
            else "the job dies at once (0:53) and leaves no log"
            if path
            else "the words are used as they stand"
            if names_only
            else "sbatch refuses the value"
        )
        better = "%x, %j, %A and %a are Slurm's own names" if path or names_only else "the shell expands it there"
        yield RuleHit(
            option.line,
            f"sbatch expands no shell variables: --{option.name}={value} is taken as it stands",
            effect,
            f'sbatch --{option.name}="{value}" {facts.job.path}   # {better}',
            "warning" if names_only or in_name or option.name in ("export", "exclude", "nodelist") else None,
            _expanded_edits(option.name, value),
        )


def _expanded_edits(name: str, value: str) -> tuple[ScriptEdit, ...]:
    """The value with Slurm's patterns, and with what is known of this user, in the place of the variables."""
    known = {**_SLURM_PATTERNS, **{one: os.environ[one] for one in ("HOME", "USER", "PWD") if one in os.environ}}
    new = _VARIABLE.sub(lambda match: known.get(match[1] or match[2], match[0]), value)
    return () if "$" in new or "`" in new else (option_edit(name, new),)


@rule("D06", "error", "a tilde in a path of a directive")
def tilde_in_path(facts: CheckFacts) -> Iterator[RuleHit]:
    for option in facts.job.header:
        if option.name in _PATHS and (option.value or "").startswith("~"):
            yield RuleHit(
                option.line,
                f"sbatch does not expand ~ in --{option.name}={option.value}",
                "the job dies at once (0:53), or writes into a folder that is called ~",
                f"an absolute path, or one below the folder where sbatch is called: --{option.name}=logs/%j.out",
                None,
                (option_edit(option.name, os.path.expanduser(option.value or "")),),
            )


@text_rule("D09", "error", "a directive that sbatch cannot split into options", lower=("warning",))
def unparsable_directive(script: BatchScript) -> Iterator[RuleHit]:
    for number in script.directives.lines:
        line = script.text.lines[number - 1]
        comment = line.find("#", 1)
        spaced = _SPACED_OPTION.search(line[:comment] if comment > 0 else line)
        if spaced is not None:
            yield RuleHit(
                number,
                f"{spaced[1]} has a blank beside its =",
                "sbatch refuses the script: the value is read as '='",
                f"{spaced[1]}=VALUE, without blanks",
                None,
                (ScriptEdit("replace", number, spaced[0], f"{spaced[1]}="),),
            )
    for option in script.header:
        # --export= and --constraint= are ways to say "nothing"; a number cannot be nothing.
        if option.value == "" and option.name in _REQUIRED_OPTIONS:
            yield RuleHit(
                option.line,
                f"--{option.name} has no value",
                "sbatch refuses the script",
                f"--{option.name}=VALUE, or leave the line out",
            )
    for stray in script.directives.strays:
        if stray.word[:1] in _DASHES and stray.word:
            plain = "--" + stray.word.lstrip(_DASHES + "-")
            yield RuleHit(
                stray.line,
                f"{stray.word!r} begins with a dash that is not the one on the keyboard",
                "sbatch refuses the script",
                plain,
                None,
                (ScriptEdit("replace", stray.line, stray.word, plain),),
            )
        elif (
            not is_template(stray.text)
            and not _SPACED_OPTION.search(stray.text)
            and stray.word not in ("hetjob", "packjob")
        ):
            yield RuleHit(
                stray.line,
                f"{stray.word!r} belongs to no option",
                "sbatch refuses the script, or reads it as part of the option before",
                "one option per line, --name=value; a value with blanks in quotes",
                "warning",
            )


@text_rule("D23", "hint", "a comment glued to a value")
def glued_comment(script: BatchScript) -> Iterator[RuleHit]:
    for number in script.directives.lines:
        line = script.text.lines[number - 1]
        match = re.search(r"[^\s\\#\"']#", line[1:])
        if match is not None:
            place = match.start() + 2
            yield RuleHit(
                number,
                "the comment begins without a blank behind the value",
                "this Slurm cuts it off; site filters that read the script may not",
                "a blank before #",
                None,
                (ScriptEdit("replace", number, line[place:], f" {line[place:]}"),),
            )


@rule("D25", "error", "an option that sbatch does not know", lower=("warning",))
def unknown_option(facts: CheckFacts) -> Iterator[RuleHit]:
    from difflib import get_close_matches

    takes = known_options()
    for option in facts.job.header:
        if option.name in takes or option.name.startswith(_PLUGIN_PREFIXES):
            continue
        near = _RENAMED_OPTIONS.get(option.name) or next(
            iter(get_close_matches(option.name, takes, n=1, cutoff=0.8)), None
        )
        hint = f"did you mean --{near}?" if near else "sbatch --help   # lists what this Slurm and its plugins take"
        if len([name for name in takes if name.startswith(option.name)]) > 1:
            hint = f"write it in full, such as --{next(name for name in takes if name.startswith(option.name))}"
        yield RuleHit(
            option.line,
            f"sbatch has no option --{option.name}, unless a plugin of the site adds it",
            "sbatch refuses the script: unrecognized option",
            hint,
            None if near or option.name in _RENAMED_OPTIONS else "warning",
            (option_edit(option.name, ""), option_edit(near, option.value)) if near in takes and option.value else (),
        )


#: Options that change where a job writes, or what it is called, and not what it does.
_NAMES_OF_FILES = frozenset({"output", "error", "job-name", "comment", "mail-user"})


@rule("D26", "warning", "options that contradict each other", lower=("hint",))
def conflicting_options(facts: CheckFacts) -> Iterator[RuleHit]:
    seen: dict[str, tuple[int, str | None]] = {}
    for option in facts.job.header:
        before = seen.get(option.name)
        if before is not None and not _repeats(option.name, before[1], option.value):
            yield RuleHit(
                option.line,
                f"--{option.name} is given twice, {before[1]} in line {before[0]} and {option.value} here",
                f"the later one counts: {option.value}",
                "keep one of them",
                # The job is the same job; only its log or name is elsewhere.
                "hint" if option.name in _NAMES_OF_FILES else None,
            )
        seen[option.name] = (option.line, option.value)
    options = facts.job.options
    if "requeue" in options and "no-requeue" in options:
        yield RuleHit(
            options["no-requeue"].line, "--requeue and --no-requeue are both given", "the later one counts", "keep one"
        )
    if "gpus-per-task" in options and not {"gpus", "ntasks", "ntasks-per-node"} & set(options):
        yield RuleHit(
            options["gpus-per-task"].line,
            "--gpus-per-task needs --ntasks or --gpus beside it",
            "some releases of Slurm refuse it (22.05: invalid generic resource specification)",
            "--gpus-per-node=N, or add --ntasks=N",
            "hint",  # the number of tasks is often given on the command line
        )


def _repeats(name: str, before: str | None, value: str | None) -> bool:
    """A second mention that loses nothing: the same value, one that adds up, or a list that holds the first."""
    if before == value or name in ("dependency", "constraint", "mail-type"):
        return True
    listed = set((value or "").split(","))
    return name in ("exclude", "nodelist", "partition") and set((before or "").split(",")) <= listed


@text_rule("D30", "error", "a file that sbatch cannot take")
def unsupported_file(script: BatchScript) -> Iterator[RuleHit]:
    text, path = script.text, script.path
    if text.encoding != "binary" and not any(line.strip() for line in text.lines):
        yield RuleHit(1, "the file is empty", "sbatch refuses it: batch script is empty", "write a script into it")
        return
    if text.encoding.startswith("utf-16"):
        yield RuleHit(
            1,
            "the file is text in UTF-16, in which every second byte is a NUL",
            "sbatch refuses it: this does not look like a batch script",
            f"iconv -f utf-16 -t utf-8 {path} > fixed.sh",
        )
    elif text.encoding == "binary":
        yield RuleHit(
            1, "the file is not text", "sbatch refuses it, or runs something unreadable", "name the script instead"
        )
    elif text.has_nul:
        yield RuleHit(
            1, "the file has NUL characters", "Slurm refuses the script", f"tr -d '\\000' < {path} > fixed.sh"
        )
    if text.size > SLURM_MAX_BYTES:
        yield RuleHit(
            1,
            f"the file has {text.size:,} bytes, and Slurm takes scripts of 4 MiB",
            "sbatch refuses it: job script too large",
            "put data beside the script, not into it",
        )


#: A template of Jinja and its like, which is no script yet.
_FILLED_IN_LATER = re.compile(r"\{\{[^{}]*\}\}|\{%")
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w /.-]*>")


@text_rule("D35", "error", "a script that bash cannot read")
def syntax_problems(script: BatchScript) -> Iterator[RuleHit]:
    if script.language not in ("bash", "sh") or _FILLED_IN_LATER.search(script.text.body):
        return
    for problem in [one for one in script.problems if not one.is_warning][:1]:
        line = script.text.lines[problem.line - 1] if problem.line <= len(script.text.lines) else ""
        blank = _PLACEHOLDER.search(line)
        yield RuleHit(
            problem.line,
            f"{blank[0]} is a placeholder, and bash reads < and > as redirects"
            if blank is not None and problem.sentence.startswith("no file")
            else problem.sentence,
            "bash stops there with a syntax error, and the job fails; nothing below it was checked",
            f"put a value in the place of {blank[0]}"
            if blank is not None
            else f"correct it, then: bash -n {script.path}",
        )


@text_rule("D31", "hint", "what could not be read")
def unparsed_lines(script: BatchScript) -> Iterator[RuleHit]:
    if script.kind == "batch" and not script.is_shell:
        yield RuleHit(
            1,
            f"the script is {script.language}, of which only the #SBATCH lines were checked",
            "nothing is known about its commands",
            "check its commands by eye",
        )
    for problem in [one for one in script.problems if one.is_warning]:
        yield RuleHit(
            problem.line,
            problem.sentence,
            "bash warns and reads to the end of the file; nothing below it was checked",
            f"correct it, then: bash -n {script.path}",
        )
    if script.text.cut:
        yield RuleHit(
            1, "the file is very long; only its beginning was checked", "the rest is unknown", "shorten the script"
        )
    for number in script.directives.lines:
        if is_template(script.text.lines[number - 1]):
            yield RuleHit(
                number,
                "this directive looks like a template that was not filled in",
                "sbatch would take it as it stands",
                "check the script that is made from this template",
            )
    for program, hints in script.python.items():
        if hints.unread:
            yield RuleHit(
                next((one.line for one in script.launches if one.program == program), 1),
                f"{program} could not be read as Python ({hints.unread.splitlines()[0][:80]})",
                "what it needs is not known",
                f"python -m py_compile {program}",
            )


@text_rule("D34", "hint", "an ignore comment without effect")
def ineffective_ignore(script: BatchScript) -> Iterator[RuleHit]:
    for line, code in read_ignore_comments(script).unknown:
        yield RuleHit(
            line,
            f"the comment names {code}, which is not a code of the doctor" if code else "the comment names no code",
            "nothing is ignored",
            "# shoal: ignore G16",
        )


@rule("D36", "error", "more nodes listed than asked for")
def long_node_list(facts: CheckFacts) -> Iterator[RuleHit]:
    options, most = facts.job.options, facts.job.geometry.nodes
    listed = options.get("nodelist")
    if listed is None or "nodes" not in options or most is None or facts.job.geometry.uncertain:
        return
    names = [name for name in (listed.value or "").split(",") if name]
    if not listed.is_literal or "[" in (listed.value or "") or len(names) <= most:
        return
    yield RuleHit(
        listed.line,
        f"--nodelist asks for all of its {len(names)} nodes, and --nodes for {most}",
        f"sbatch refuses it: invalid number of nodes (-N {len(names)}-{most})",
        f"--nodes={len(names)}, or one name; to keep other nodes out use --exclude, or --constraint with a feature",
    )
