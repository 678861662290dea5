"""Checks of batch scripts and of planned runs before they are submitted: rules that yield findings.

check.py          check scripts: read them, ask the cluster once, apply the rules
submit_checks.py  what `shoal submit` checks before it sends anything
finding.py        findings, the registry of rules, and what a rule is given
rules/            the rules
job.py            what the rules know about one job; script.py reads it from a batch script,
                  submit_checks.py from a run that shoal has planned
launches.py launchers.py   where a script starts its work; the options of each launcher
python_file.py    what the source of the training program shows
geometry.py       nodes, tasks, GPUs, CPUs and memory that a header asks for
known_findings.py   what is not reported again: ignore comments, --select, --ignore, a baseline file
repair.py edits.py  `--fix`: a corrected copy of a script, and the edits that rules propose for it
smoke.py          `--fix --smoke`: a few steps of the copy, and its world size
nearest.py        the nearest request that the cluster accepts
training_args.py  batch size, learning rate, workers and model size in the words of a command
explain.py        `--explain`: the processes that a script starts, in numbers
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.doctor.check import (
        ScriptCheck,
        TrainingInputs,
        as_record,
        check_scripts,
        check_text,
        facts_without_script,
        find_files,
        take_out,
    )
    from shoal.doctor.explain import LaunchNumbers, construct_launch, explain_facts, explain_rows
    from shoal.doctor.finding import SEVERITY_ORDER
    from shoal.doctor.known_findings import parse_code_choice, read_baseline, write_baseline
    from shoal.doctor.repair import FixedScript, write_fixed
    from shoal.doctor.script import started_programs
    from shoal.doctor.smoke import SmokeResult, run_smoke
    from shoal.doctor.submit_checks import check_submissions, refuse_impossible
else:
    __getattr__ = lazy_exports(__name__)
