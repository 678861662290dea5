"""Secrets stay where they are, in no record, script, argument, log or job; a file that only the user reads has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from project import Project, assert_clear_error, env_of
from shoal import redaction
from shoal.job import admission
from shoal.kernel import submission
from shoal.model import RunSpec
from shoal.sandbox import Sandbox

RUN = "001_a/000_train_0"
SECRET = "s3cr3t-0123456789abcdef"
NAMES = ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD")


def _files_with_secret(*folders: Path) -> list[Path]:
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and SECRET.encode() in path.read_bytes():
                found.append(path)
    return found


@pytest.mark.slurm
def test_secrets_of_the_environment_reach_no_file_and_no_job(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    project.env.update(dict.fromkeys(NAMES, SECRET))
    script = project.script("001_a/000_train_0.sh", "export TEST_PLAIN=fine", "train --time=5 --mem=50 -- wait=go")
    done = project.shoal("submit", script)
    mark = project.wait_started(RUN)
    assert [env_of(mark, name) for name in NAMES] == [""] * 4 and env_of(mark, "TEST_PLAIN") == "fine"
    job_id = project.status()[RUN]["job_id"]
    told = project.slurm("scontrol", "show", "job", "-dd", job_id) + project.slurm(
        "scontrol", "write", "batch_script", job_id, "-"
    )
    assert SECRET not in told + done.out + done.err
    assert "WANDB_API_KEY" in done.err and "secrets.env" in done.err
    started = project.records(RUN, "attempt.1.start")[0]
    environ = Path(f"/proc/{started['pid']}/environ").read_bytes()
    assert SECRET.encode() not in environ
    project.write("go", "")
    project.wait(RUN, "completed")
    assert _files_with_secret(project.home, project.root / "outputs", cluster.layout.save) == []


def test_a_secret_that_a_script_exports_is_not_kept_but_reaches_a_run_on_this_machine(tmp_path: Path) -> None:
    project = Project(tmp_path)
    script = project.script("001_a/000_train_0.sh", f"export WANDB_API_KEY={SECRET}", "train")
    done = project.bash(script)
    assert env_of(project.marks(RUN)[0], "WANDB_API_KEY") == SECRET
    assert "WANDB_API_KEY looks secret" in done.err and SECRET not in done.out + done.err
    assert _files_with_secret(project.home, project.root / "outputs") == []


@pytest.mark.slurm
def test_a_private_secrets_file_reaches_the_job_and_a_readable_one_does_not(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    config = tmp_path / "home/.config/shoal"
    config.mkdir(parents=True)
    file = config / "secrets.env"
    file.write_text(f"# a comment\nexport TEST_TOKEN={SECRET}\n=bad\nWANDB_API_KEY = '{SECRET}'\n")
    file.chmod(0o640)
    project.shoal("submit", project.script("001_a/000_train_0.sh", "train --time=5 --mem=50"))
    project.wait(RUN, "completed")
    assert env_of(project.marks(RUN)[0], "WANDB_API_KEY") == ""
    assert "chmod 600" in project.shoal("logs", RUN, "--slurm").out
    file.chmod(0o600)
    project.shoal("submit", project.script("001_a/001_train_0.sh", "train --time=5 --mem=50"))
    project.wait("001_a/001_train_0", "completed")
    (mark,) = project.marks("001_a/001_train_0")
    assert env_of(mark, "WANDB_API_KEY") == env_of(mark, "TEST_TOKEN") == SECRET
    assert _files_with_secret(project.home, project.root / "outputs") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "lines",
    [
        ['train -- --key "$WANDB_API_KEY"'],
        ['train -- "--key=$WANDB_API_KEY"'],
        ['export TEST_CONFIG="key=$WANDB_API_KEY"', "train"],
        ['train --comment="$WANDB_API_KEY"'],
    ],
)
def test_a_secret_in_an_argument_a_setting_or_a_flag_is_refused(tmp_path: Path, lines: list[str]) -> None:
    project = Project(tmp_path)
    project.env["WANDB_API_KEY"] = SECRET
    script = project.script("001_a/000_train_0.sh", *lines)
    for done in (project.shoal("submit", script, code=None), project.bash(script, code=None)):
        assert_clear_error(done, 2, "WANDB_API_KEY")
        assert SECRET not in done.out + done.err
    assert project.marks(RUN) == [] and _files_with_secret(project.root / "experiments", project.root / "marks") == []
    assert not project.home.exists() or _files_with_secret(project.home) == []


ELSEWHERE = {
    "DB_PASS": SECRET,
    "SMTP_PW": SECRET,
    "ADMIN_PWD": SECRET,
    "BASIC_AUTH": SECRET,
    "MY_SESSION": SECRET,
    "SLACK_WEBHOOK_URL": f"https://example.org/{SECRET}",
    "NOTIFY": f"https://hooks.slack.com/services/{SECRET}",
    "DATABASE_URL": f"postgresql://me:{SECRET}@db.example.org:5432/runs",
    "STORAGE": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={SECRET};",
    "HTTPS_PROXY": f"http://me:{SECRET}@proxy.example.org:3128",
}
ORDINARY = {
    "HTTP_PROXY": "http://proxy.example.org:3128",
    "PWD": "/a",
    "OLDPWD": "/b",
    "DESKTOP_SESSION": "gnome",
    "GIT_ASKPASS": "/usr/bin/ask",
    "TOKENIZERS_PARALLELISM": "false",
    "REMOTE": "ssh://git@example.org:22/x",
    "ADDRESS": "tcp://10.0.0.1:29500",
    "TEMPLATE": "postgresql://me:$DB_PASS@db/x",
}


def test_secrets_under_other_names_and_in_values_stay_here() -> None:
    kept, names = redaction.split_environment({**ELSEWHERE, **ORDINARY})
    assert kept == ORDINARY and names == sorted(ELSEWHERE)
    assert redaction.secret_values(ELSEWHERE)[SECRET]
    for value in ELSEWHERE.values():
        assert SECRET not in redaction.redact(f"it is {value} here", redaction.secret_values(ELSEWHERE))
    assert redaction.redact(f"https://me:{SECRET}@host/x --api-key {SECRET} password: {SECRET}", {}) == (
        "https://me:***@host/x --api-key *** password: ***"
    )


@pytest.mark.slow
def test_a_secret_exported_under_another_name_is_not_kept_with_the_run(tmp_path: Path) -> None:
    project = Project(tmp_path)
    lines = [f"export {name}='{value}'" for name, value in ELSEWHERE.items()]
    done = project.bash(project.script("001_a/000_train_0.sh", *lines, "train"))
    assert all(name in done.err for name in ELSEWHERE) and SECRET not in done.out + done.err
    assert _files_with_secret(project.home, project.root / "outputs") == []
    toml = (project.root / "shoal.toml").read_text()
    project.write("shoal.toml", toml + f'[steps.train.env]\nPROXY = "http://me:{SECRET}@proxy:3128"\n')
    assert_clear_error(project.shoal("plan", "experiments/001_a", code=None), 2, "PROXY", "secrets.env")


@pytest.mark.parametrize(
    "words",
    [
        f"--api-key {SECRET}",
        f"--api_key={SECRET}",
        f"--hub-token {SECRET}",
        f"logger.wandb.api_key={SECRET}",
        f"+password={SECRET}",
        f"--db postgresql://me:{SECRET}@db/x",
        "--token hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
        "--password hunter2",
        "--api-key=hunter2",
        "--header 'Authorization: Bearer abc123def'",
        "--config='{api_key: abcdefghijklmnop}'",
        """--config '{"db": {"password": "hunter2"}}'""",
    ],
)
def test_a_secret_on_a_command_line_is_refused(words: str, tmp_path: Path) -> None:
    project = Project(tmp_path)
    done = project.shoal("submit", project.script("001_a/000_train_0.sh", f"train -- {words}"), code=None)
    assert_clear_error(done, 2, "would be written to disk", "secrets.env")
    assert SECRET not in done.out + done.err and not project.home.exists()


@pytest.mark.parametrize(
    "words",
    [
        "--image-key jpg;png;jpeg",
        "--eos-token <|endoftext|>",
        "--pad_token=[PADDING]",
        "--max-tokens 100000000",
        "--tokenizer gpt2-medium",
        "--password-file /home/me/password",
        "--private-key ~/.ssh/id_ed25519",
        "--token $HF_TOKEN_OF_MINE",
        "--use-auth-token --seed",
        "--api-key {resume_from}",
        "--token cls",
        "--password none",
        "--config={key:abc,max_tokens:5,api_key:null}",
        "--config={api_key:${oc.env:KEY}}",
        "d={'api_key':os.environ['KEY']}",
    ],
)
def test_arguments_that_only_look_secret_are_not_refused(words: str) -> None:
    spec = RunSpec(
        experiment="a", stem="b", number=None, step="t", step_kind="t", seed=None, command=["python", *words.split()],
        cwd="/", output="t",
    )  # fmt: skip
    redaction.refuse_leaks([spec], {})


@pytest.mark.slow
def test_what_a_program_printed_is_redacted_in_copies_for_others(tmp_path: Path) -> None:
    project = Project(tmp_path)
    line = f"ValueError: cannot reach https://me:{SECRET}@host/x"
    project.write("fails.py", f"raise SystemExit({line!r})")
    project.write("shoal.toml", '[steps.fails]\ncommand = "python3 fails.py"\n')
    project.script("001_a/000_fails_0.sh", "fails")
    project.shoal("submit", "experiments/001_a", code=1)
    project.shoal("ui", "--export", "copy")
    project.shoal("report", "--html", "copy/one.html")
    assert "me:***@host" in (project.root / "copy/index.html").read_text()
    assert _files_with_secret(project.root / "copy") == []


SWEEP = 'step = "train"\nseeds = "0-1"\n'


@pytest.mark.slow
@pytest.mark.parametrize("first", ["a script", "a sweep", "a budget"])
def test_state_is_private_to_the_user(first: str, tmp_path: Path) -> None:
    project = Project(tmp_path)
    if first == "a sweep":
        project.shoal("submit", project.write("experiments/002_b/000_train.toml", SWEEP))
    else:
        budget = ("--budget", "jobs=3") if first == "a budget" else ()
        project.shoal("submit", *budget, project.script("001_a/000_train_0.sh"))
    assert os.stat(project.home).st_mode & 0o777 == 0o700
    open_to_others = [path for path in project.home.rglob("*") if path.stat().st_mode & 0o077]
    assert open_to_others == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_an_environment_that_somebody_else_has_put_there_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    name = admission.store_environment(str(tmp_path), {"PATH": "/mine"})
    (kept,) = (tmp_path / "environments" / str(os.getuid())).iterdir()
    assert kept.parent.stat().st_mode & 0o7777 == 0o700 and kept.stat().st_mode & 0o777 == 0o600
    assert submission.stored_environment(str(tmp_path), name) == {"PATH": "/mine"}
    os.chown(kept, 65534, 65534)
    with pytest.raises(PermissionError, match="an environment of another user"):
        submission.stored_environment(str(tmp_path), name)
