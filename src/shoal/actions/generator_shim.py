"""Run a sweep script that calls MuLoCo's generator, with `shoal generate` in the generator's place.

Such scripts start the generator with `python` through a shell and then sbatch. A directory in front of PATH holds
programs called python and python3: they run `shoal generate FLAGS` for that file name, and the real Python for all
others. os.system does not look at exit codes: calls that fail are counted here, and after one of them the program
called sbatch submits nothing, because an older script may be in the place of the one that was not written.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.batch import shell_command, shell_quote
from shoal.errors import InputError, ShoalError

GENERATOR_NAME = "generate_job_file.py"
_PYTHON_NAMES = ("python", "python3")
#: Options of Python without a value; others (-c, -m, -X, -W) mean that no file of this name is started, or are rare.
_PYTHON = """\
#!/bin/sh
for word in "$@"; do
    case $word in
        -[bBdEiIOqsSuvx]*) ;;
        *) break ;;
    esac
done
case $word in
    {name} | */{name}) ;;
    *) exec {python} "$@" ;;
esac
while [ "$1" != "$word" ]; do shift; done
shift
PATH={path} {generate} "$@" {flags} || {{
    code=$?
    echo "$code" >> {failed}
    exit "$code"
}}
"""
_SBATCH = """\
#!/bin/sh
if [ -e {failed} ]; then
    echo "error: not submitted, because a call of {name} failed: sbatch $*" >&2
    exit 1
fi
{submit}
"""
_DRY_RUN = 'echo "not submitted: sbatch $*"'


def run_with_generator(
    command: Sequence[str], flags: Sequence[str], environ: Mapping[str, str], *, dry_run: bool = False
) -> int:
    """Run the command and return its exit code; `flags` are added to each call of the generator and win.

    A ShoalError when the command completed although calls of the generator failed.
    """
    path = environ.get("PATH", os.defpath)
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        failed = Path(folder, "failed")
        programs = Path(folder, "bin")
        programs.mkdir()
        generate = shell_command([sys.executable, "-m", "shoal", "generate"])
        for name in _PYTHON_NAMES:
            real = shutil.which(name, path=path) or sys.executable
            text = _PYTHON.format(
                name=GENERATOR_NAME,
                python=shell_quote(real),
                path=shell_quote(path),
                generate=generate,
                flags=" ".join(map(shell_quote, flags)),
                failed=shell_quote(str(failed)),
            )
            _write_program(programs / name, text)
        submit = _DRY_RUN if dry_run else f'PATH={shell_quote(path)} exec sbatch "$@"'
        _write_program(
            programs / "sbatch", _SBATCH.format(failed=shell_quote(str(failed)), name=GENERATOR_NAME, submit=submit)
        )
        code = _run(command, {**environ, "PATH": f"{programs}{os.pathsep}{path}"})
        codes = failed.read_text().split() if failed.exists() else []
    if codes and not code:
        raise ShoalError(
            f"{len(codes)} of the calls of {GENERATOR_NAME} failed, but {command[0]} ended with exit code 0",
            hint="correct the errors above and run the command again: nothing was submitted after the first of them",
        )
    return code


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    program = shutil.which(command[0], path=environ["PATH"])
    if program is None:
        raise InputError(f"program {command[0]!r} not found", hint="shoal generate -- python jobs/sweep.py")
    code = subprocess.run([program, *command[1:]], env=environ, check=False).returncode
    return code if code >= 0 else 128 - code
