"""Text that goes through bash and through sbatch comes out as it went in."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.batch.quoting import escape_percent, sbatch_line, shell_command, shell_quote
from shoal.errors import InputError
from shoal.sandbox import Sandbox

ARGUMENT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
LINE = st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), max_size=40)
NASTY = ["", " ", "'", '"', "\\", "$(id)", "`id`", "${x}", "a b", "*", "~", "-rf", "--", "%j", "#x", "a#b", "!x", "\n",
         "\t", "{a,b}", "é☃", "a=b", "if", "time", "\\'", '\\"', "a\\", ";", "&", "|", "<(x)"]  # fmt: skip


@settings(max_examples=60)
@given(st.lists(ARGUMENT, min_size=1, max_size=30))
@example(NASTY)
def test_any_words_arrive_unchanged_through_bash(words: list[str]) -> None:
    script = "printf '%s\\0' " + " ".join(shell_quote(word) for word in words)
    done = subprocess.run(["bash"], input=script.encode(), capture_output=True)
    assert done.stderr == b""
    assert done.stdout.decode().split("\0")[:-1] == words


def test_bytes_that_are_not_utf8_arrive_unchanged_through_bash() -> None:
    word = b"\xff \xfe'".decode("utf-8", "surrogateescape")
    done = subprocess.run(["bash"], input=f"printf %s {shell_quote(word)}".encode("utf-8", "surrogateescape"),
                          capture_output=True)  # fmt: skip
    assert done.stdout == b"\xff \xfe'"


def test_a_nul_is_refused() -> None:
    with pytest.raises(InputError, match="NUL"):
        shell_quote("a\0b")


@pytest.mark.parametrize("name", ["A=1", "if", "time", "a b", "[[", "{", "!", "-x", "$x", "coproc"])
def test_the_first_word_is_a_program_whatever_it_looks_like(name: str, tmp_path: Path) -> None:
    program = tmp_path / name
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(["bash"], input=shell_command([name, "x y", "$z"]), capture_output=True, text=True,
                          env={"PATH": f"{tmp_path}:/usr/bin:/bin"})  # fmt: skip
    assert (done.stdout, done.stderr) == ("x y|$z|", "")


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", "x\n#SBATCH --exclusive"])
def test_a_directive_of_several_lines_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="line breaks"):
        sbatch_line("comment", value)
    with pytest.raises(InputError):
        sbatch_line("x\n--y", None)


def test_a_plain_value_stays_readable_and_others_are_quoted() -> None:
    assert sbatch_line("time", "3-00:00:00") == "#SBATCH --time=3-00:00:00"
    assert sbatch_line("requeue") == "#SBATCH --requeue"
    assert sbatch_line("comment", 'a "b" #c\\') == '#SBATCH --comment="a \\"b\\" \\#c\\\\"'
    assert sbatch_line("comment", "") == '#SBATCH --comment=""'


def test_a_path_is_taken_literally_by_slurm_or_refused() -> None:
    assert escape_percent("/a/50%j d/o.out") == "/a/50%%j d/o.out"
    for path in ("/a\\b", "/a\nb"):
        with pytest.raises(InputError):
            escape_percent(path)


#: Options whose value is free text, and which sbatch prints with -v before it asks anybody.
SHOWN = ("account", "comment", "job-name", "qos", "wckey", "reservation", "licenses", "mail-user")


def read_back(values: list[str], folder: Path) -> list[str]:
    """What the installed sbatch understands of directives; the controller it then asks for does not exist."""
    conf = folder / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nSlurmctldPort=1\nNodeName=n1\nPartitionName=p Nodes=n1\n"
                    "MessageTimeout=1\nAuthType=auth/none\n")  # fmt: skip
    lines = [sbatch_line(name, value) for name, value in zip(SHOWN, values, strict=False)]
    script = folder / "job.sh"
    script.write_text("#!/bin/bash\n" + "\n".join(lines) + "\ntrue\n")
    done = subprocess.run(["sbatch", "-vv", "--test-only", str(script)], capture_output=True, timeout=300,
                          env={"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin"})  # fmt: skip
    said = done.stderr.decode()
    found = dict(re.findall(r"^sbatch: ([a-z-]+) +: ([^\n]*)$", said, re.MULTILINE))
    return [found.get(name, f"not read: {said}") for name, _ in zip(SHOWN, values, strict=False)]


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="sbatch is not installed")
def test_any_value_is_read_back_by_the_real_sbatch_as_it_was(tmp_path: Path) -> None:
    @settings(max_examples=50)
    @given(st.lists(LINE.filter(bool), min_size=len(SHOWN), max_size=len(SHOWN)))
    @example([word for word in NASTY if word and "\n" not in word][:8])
    @example([word for word in NASTY if word and "\n" not in word][8:16])
    @example([word for word in NASTY if word and "\n" not in word][16:24])
    def round_trip(values: list[str]) -> None:
        assert read_back(values, tmp_path) == values

    round_trip()


@pytest.mark.slurm
def test_directives_reach_the_job_unchanged(quiet_cluster: Sandbox, tmp_path: Path) -> None:
    comment, folder = "a \"b\" #c \\ 'd' $HOME %j", tmp_path / "50%j #d"
    folder.mkdir()
    script = tmp_path / "job.sh"
    output = sbatch_line("output", escape_percent(str(folder / "o.txt")))
    script.write_text(f"#!/bin/bash\n{sbatch_line('comment', comment)}\n{output}\necho here\n")
    job = quiet_cluster.run("sbatch", "--parsable", "--wait", str(script)).stdout.strip()
    assert (folder / "o.txt").read_text() == "here\n"
    assert f"Comment={comment} " in quiet_cluster.run("scontrol", "-o", "show", "job", job).stdout
