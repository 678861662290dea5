"""The one caller of Slurm: its environment, its time limits, its retries, and how answers are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.kernel import slurm, slurm_text

DOWN = "Unable to contact slurm controller (connect failure)"
OPTIONS = {"SBATCH_PARTITION": "x", "SRUN_CPUS_PER_TASK": "2", "SQUEUE_STATES": "R", "SLURM_TIME_FORMAT": "relative",
           "SCANCEL_INTERACTIVE": "1", "SLURM_CLUSTERS": "other"}  # fmt: skip
KEPT = {"SLURM_CONF": "/c", "SLURM_JWT": "t", "HOME": "/h", "LC_ALL": "de_DE.UTF-8"}
OF_THE_USER = {"CUDA_VISIBLE_DEVICES": "0", "TMPDIR": "/scratch/me"}


class Programs:
    """A folder with shell scripts in place of Slurm's programs; each call is a line of `calls`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}

    def write(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "$0 $*" >> {self.folder}/calls\n{body}\n')
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return [line.rpartition("/")[2] for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


@pytest.fixture(autouse=True)
def retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses, and a limit that a busy machine does not reach."""
    monkeypatch.setattr(slurm, "_RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(slurm, "RETRY_WITHIN_S", 60.0)


# ---- the environment


def test_a_new_job_gets_no_options_in_disguise_and_keeps_its_locale() -> None:
    assert slurm.clean_environ({**OPTIONS, **KEPT, "SHOAL_TOKEN": "t"}) == KEPT


def test_what_belongs_to_the_current_job_is_not_inherited_by_the_next() -> None:
    of_the_job = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "PMIX_RANK": "0", **OF_THE_USER}
    assert slurm.clean_environ({**of_the_job, **KEPT}) == KEPT


def test_outside_a_job_the_same_variables_are_the_users_and_stay() -> None:
    assert slurm.clean_environ({**OF_THE_USER, **KEPT}) == {**OF_THE_USER, **KEPT}


def test_what_the_job_was_asked_for_does_not_mix_into_a_step() -> None:
    env = {"SLURM_NTASKS": "1", "SLURM_GPUS_PER_NODE": "4", "SRUN_CPUS_PER_TASK": "3", "SLURM_JOB_ID": "7", "A": "b"}
    assert slurm.step_environ(env) == {"SLURM_JOB_ID": "7", "A": "b"}


def test_programs_are_asked_without_options_in_disguise_and_in_english(programs: Programs) -> None:
    programs.write("squeue", "env")
    done = slurm.run_command(["squeue"], 10, {**programs.environ, **OPTIONS, **KEPT})
    seen = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert seen["LC_ALL"] == "C" and seen["SLURM_CONF"] == "/c" and not OPTIONS.keys() & seen.keys()


def test_the_environment_that_sbatch_gets_is_the_jobs(programs: Programs) -> None:
    programs.write("sbatch", f"env > {programs.folder}/seen; cat > {programs.folder}/script; echo '12;here'")
    answer = slurm.sbatch(["--mem=1"], "#!/bin/sh\n", {**programs.environ, **OPTIONS, **KEPT, "SHOAL_RUN": "r"})
    seen = dict(line.partition("=")[::2] for line in (programs.folder / "seen").read_text().splitlines())
    assert answer == slurm.SbatchAnswer("accepted", "12", "")
    assert seen["LC_ALL"] == "de_DE.UTF-8" and not (OPTIONS.keys() | {"SHOAL_RUN"}) & seen.keys()
    assert (programs.folder / "script").read_text() == "#!/bin/sh\n"
    assert programs.calls == ["sbatch --parsable --mem=1"]


# ---- outcomes


def test_what_happens_to_a_program_is_an_outcome_and_never_an_exception() -> None:
    missing = slurm.run_command(["no-such-program"], 1, os.environ)
    assert (missing.ok, missing.failure) == (
        False,
        slurm.PROGRAM_MISSING,
    ) and "cannot run no-such-program" in missing.stderr
    late = slurm.run_command(["sleep", "20"], 0.2, os.environ)
    assert late.failure == slurm.TIMED_OUT and late.stderr == "sleep did not answer within 0.2 s"
    assert slurm.run_command(["echo", "a\0b"], 1, os.environ).failure == slurm.BAD_ARGUMENTS
    assert slurm.run_command(["echo", "x" * 10_000_000], 1, os.environ).failure == slurm.BAD_ARGUMENTS


def test_bytes_that_are_not_text_do_not_break_the_answer() -> None:
    assert slurm.run_command(["printf", r"a\377b"], 10, os.environ).stdout == "a\ufffdb"


def test_sbatch_that_cannot_be_started_has_sent_nothing_and_silence_proves_nothing(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert slurm.sbatch([], b"", {"PATH": "/nowhere"}).kind == "unreached"
    assert slurm.sbatch(["a\0b"], b"", programs.environ).kind == "unreached"
    monkeypatch.setattr(slurm, "SBATCH_TIMEOUT_S", 0.2)
    programs.write("sbatch", "exec sleep 20")
    assert slurm.sbatch([], b"", programs.environ) == slurm.SbatchAnswer(
        "unclear", None, "sbatch did not answer within 0.2 s"
    )


# ---- retries


@pytest.mark.parametrize(
    "argv", [["squeue", "--me"], ["sinfo", "-h"], ["scontrol", "show", "config"], ["scontrol", "-o", "show", "job"]]
)
def test_a_question_is_asked_again_when_the_controller_cannot_be_reached(programs: Programs, argv: list[str]) -> None:
    programs.write(
        argv[0], f"[ $(wc -l < {programs.folder}/calls) -ge 3 ] && echo yes && exit\necho '{DOWN}' >&2; exit 1"
    )
    done = slurm.run_command(argv, 60, programs.environ)
    assert done.ok and done.stdout == "yes\n" and len(programs.calls) == 3


@pytest.mark.parametrize(
    "argv",
    [
        ["sbatch", "--test-only"],
        ["scancel", "7"],
        ["scontrol", "update", "JobId=7"],
        ["scontrol", "requeue", "7"],
        ["sacct", "-n"],
        ["sacctmgr", "show", "user"],
    ],
)
def test_what_changes_something_is_never_repeated(programs: Programs, argv: list[str]) -> None:
    programs.write(argv[0], f"echo '{DOWN}' >&2; exit 1")
    assert not slurm.run_command(argv, 10, programs.environ).ok and len(programs.calls) == 1


def test_sbatch_is_never_repeated(programs: Programs) -> None:
    programs.write("sbatch", f"echo '{DOWN}' >&2; exit 1")
    assert slurm.sbatch([], b"", programs.environ).kind == "unreached" and len(programs.calls) == 1


def test_an_answer_is_not_asked_for_again_even_if_it_is_no(programs: Programs) -> None:
    programs.write("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert slurm.squeue(programs.environ, job="7").problem == "slurm_load_jobs error: Invalid job id specified"
    assert len(programs.calls) == 1


def test_a_machine_with_slurms_programs_and_no_cluster_is_asked_once(programs: Programs) -> None:
    said = "error: fetch_config: DNS SRV lookup failed\nfatal: Could not establish a configuration source"
    programs.write("scontrol", f"echo '{said}' >&2; exit 1")
    assert not slurm.run_command(["scontrol", "show", "config"], 10, programs.environ).ok and len(programs.calls) == 1


def test_a_question_is_given_up_in_bounded_time(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "RETRY_WITHIN_S", 0.2)
    programs.write("squeue", f"echo '{DOWN}' >&2; exit 1")
    assert slurm.squeue(programs.environ) == slurm.SqueueResult([], DOWN)
    assert 1 < len(programs.calls) < 30
    programs.write("sinfo", f"sleep 0.3; echo '{DOWN}' >&2; exit 1")
    assert not slurm.run_command(["sinfo"], 10, programs.environ).ok
    assert programs.calls.count("sinfo ") == 1, "a program that has waited for the controller itself has tried enough"


# ---- argument lists


def test_argument_lists(programs: Programs) -> None:
    for name in ("squeue", "scancel", "scontrol"):
        programs.write(name, "")
    slurm.scancel(["7.0"], programs.environ, signal_number=15)
    slurm.scancel(["7", "8"], programs.environ, state="PENDING")
    slurm.update_job("7", {"JobName": "a b"}, programs.environ)
    slurm.squeue(programs.environ, users=["ann", "bob"])
    fields = slurm_text.SQUEUE_FIELDS
    assert programs.calls == [
        "scancel --signal=TERM 7.0",
        "scancel --state=PENDING 7 8",
        "scontrol update JobId=7 JobName=a b",
        f"squeue -u ann,bob -t all -r -h -o {fields}",
    ]


def test_a_job_that_has_ended_already_needs_no_cancelling(programs: Programs) -> None:
    programs.write("scancel", "echo 'scancel: error: Kill job error on job id 7: Invalid job id specified' >&2; exit 1")
    assert slurm.scancel(["7"], programs.environ).ok
    programs.write("scancel", "echo 'scancel: error: Kill job error on job id 7: Access denied' >&2; exit 1")
    assert not slurm.scancel(["7"], programs.environ).ok


# ---- reading


@pytest.mark.parametrize(
    ("code", "out", "err", "kind"),
    [
        (0, "12\n", "", "accepted"),
        (0, "12;cluster\n", "sbatch: warning: can't honor\n", "accepted"),
        (0, "banner of the site\n12\n", "", "accepted"),
        (1, "", "sbatch: error: Batch job submission failed: Invalid account", "refused"),
        (1, "", "sbatch: unrecognized option '--x'", "refused"),
        (1, "", f"sbatch: error: Batch job submission failed: {DOWN}", "unreached"),
        (1, "", "sbatch: fatal: Could not establish a configuration source", "unreached"),
        (1, "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", "unclear"),
        (1, "", "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", "unclear"),
        (1, "12\n", "", "unclear"),
        (0, "", "", "unclear"),
        (-9, "", "", "unclear"),
        (-9, "", "sbatch: error: Invalid", "unclear"),
    ],
)  # fmt: skip
def test_only_words_that_prove_it_count_as_not_submitted(code: int, out: str, err: str, kind: str) -> None:
    answer = slurm.classify_sbatch(code, out, err)
    assert answer.kind == kind and (answer.job_id == "12") == (kind == "accepted")


def test_the_state_of_a_job_is_found_among_the_tasks_of_its_array() -> None:
    text = "12 PENDING N/A Priority\n13 RUNNING 2026-11-15T10:20:30 None\n14 RUNNING None\nrubbish\n"
    text += "15 COMPLETING N/A TimeLimit\n"
    assert slurm_text.parse_job_state(text, "12") == slurm_text.JobState("PENDING", False)
    assert slurm_text.parse_job_state(text, "13") == slurm_text.JobState("RUNNING", True)
    assert slurm_text.parse_job_state(text, "14") == slurm_text.JobState("RUNNING", False)
    assert slurm_text.parse_job_state(text, "15") == slurm_text.JobState("COMPLETING", False, timed_out=True)
    assert slurm_text.parse_job_state(text, "1") is None


def test_times_that_slurm_does_not_know_are_none() -> None:
    assert slurm_text.parse_time("2026-11-15T10:20:30\n") is not None
    assert [slurm_text.parse_time(text) for text in ("N/A", "", "Unknown", "in 5 minutes")] == [None] * 4


def test_a_word_is_live_or_ended_and_never_both() -> None:
    assert not slurm_text.SLURM_ACTIVE_STATES.keys() & slurm_text.SLURM_ENDED_STATES.keys()
    assert not slurm_text.JobRow("1", "SOMETHING_NEW", "x").has_ended
