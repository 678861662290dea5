"""Telling a person from inside jobs: one message per event, by command, webhook or mail; failing harms nothing."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from project import Project
from shoal.describe.project import load_project
from shoal.errors import InputError
from shoal.job import notifications
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slow

COMMAND = '\n[notify]\ncommand = "sh -c \'(cat; echo; echo ===) >> {told}\'"\non = ["end", "failure", "quiet"]\n'


def told(path: Path) -> list[str]:
    """Whole messages only: what follows the last line of marks is still being written."""
    return [text.strip() for text in path.read_text().split("===\n")[:-1]] if path.exists() else []


@pytest.mark.slurm
def test_one_digest_for_a_first_failure_and_one_for_the_end(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    log = tmp_path / "told"
    project = Project(tmp_path, quiet_cluster, toml=COMMAND.format(told=log))
    for seed in range(4):
        project.script(
            f"001_tell/000_train_{seed}.sh", f"train --time=5 --mem=50 -- {'exit=3' if seed < 2 else 'wait=go'}"
        )
    project.shoal("submit", "experiments/001_tell")
    wait_until(lambda: project.shoal("status", "--json").json["counts"].get("failed") == 2, 60, "two have failed")
    wait_until(lambda: len(told(log)) == 1, 30, "the first failure was told")
    assert "first failure: 001_tell/000_train_" in told(log)[0]
    (project.root / "go").touch()
    wait_until(lambda: len(told(log)) >= 2, 60, "the end was told")
    wait_until(
        lambda: project.shoal("status", "--json").json["counts"] == {"completed": 2, "failed": 2}, 60, "all ended"
    )
    assert len(told(log)) == 2 and "001_tell: all runs have ended\n2 completed, 2 not" in told(log)[1]
    assert "shoal report 001_tell" in told(log)[1]


class Hook(http.server.BaseHTTPRequestHandler):
    got: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).got.append((self.headers["Content-Type"], body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def hook() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    Hook.got = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/x", Hook.got
    server.shutdown()
    server.server_close()


def test_a_webhook_gets_its_address_from_the_environment_and_nothing_else_keeps_it(
    tmp_path: Path, hook: tuple[str, list[tuple[str, bytes]]]
) -> None:
    url, got = hook
    project = Project(tmp_path, toml='\n[notify]\nwebhook = "$MY_HOOK"\non = ["end"]\n')
    project.script("001_tell/000_train_0.sh", "train -- exit=3")
    project.shoal("submit", "experiments/001_tell", code=None, MY_HOOK=url)
    assert len(got) == 1 and got[0][0] == "application/json"
    message = json.loads(got[0][1])
    assert message["event"] == "end" and message["text"].startswith("001_tell: all runs have ended\n0 completed, 1 not")
    assert not any(url in path.read_text(errors="replace") for path in project.home.rglob("*") if path.is_file())


def test_failing_to_tell_changes_nothing_about_the_run(tmp_path: Path) -> None:
    project = Project(tmp_path, toml='\n[notify]\ncommand = "no-such-program"\nwebhook = "$NOT_SET"\n')
    project.script("001_tell/000_train_0.sh", "train -- print=hello")
    done = project.shoal("submit", "experiments/001_tell")
    assert "telling by command failed" in done.err and "$NOT_SET holds no address" in done.err
    assert project.shoal("status", "--json").json["counts"] == {"completed": 1}


def test_a_quiet_run_is_told_once(tmp_path: Path) -> None:
    log = tmp_path / "told"
    project = Project(tmp_path, toml=COMMAND.format(told=log) + 'quiet_after = "1s"\n')
    project.script("001_tell/000_train_0.sh", "train -- wait=go")

    def let_go() -> None:
        wait_until(lambda: told(log), 60, "told")
        project.write("go", "")

    go = threading.Thread(target=let_go)
    go.start()
    project.shoal("submit", "experiments/001_tell", SHOAL_SAMPLE_S="0.3")
    go.join(60)
    assert any(text.startswith("001_tell: 001_tell/000_train_0 has printed nothing for") for text in told(log))
    assert len(told(log)) == 2


def test_who_is_told_is_forgotten_when_the_table_goes(tmp_path: Path) -> None:
    project = Project(tmp_path, toml='\n[notify]\nmail = "me@example.org"\n')
    project.script("001_tell/000_train_0.sh", "train")
    project.shoal("submit", "experiments/001_tell")
    assert json.loads((project.home / "notify.json").read_text())["mail"] == "me@example.org"
    toml = project.root / "shoal.toml"
    toml.write_text(toml.read_text().partition("[notify]")[0])
    project.shoal("submit", "experiments/001_tell", "--rerun")
    assert not (project.home / "notify.json").exists()
    assert notifications._settings(str(project.home)) is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('webhook = "https://hooks.example/secret"', "must name a variable"),
        ('mail = "not an address"', "mail = 'not an address': expected a mail address"),
        ('mail = "-oQ/tmp@x.org"', "expected a mail address"),
        ('command = "x"\non = ["always"]', "invalid notify.on.0 = 'always': expected one of end, failure, quiet"),
        ('commnd = "x"', "did you mean 'command'"),
        ('command = "x"\nquiet_after = "30"', "not a duration"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "shoal.toml").write_text(f"[notify]\n{line}\n")
    with pytest.raises(InputError, match=message):
        load_project(tmp_path, {})


def test_a_notice_whose_teller_was_killed_is_told_again_once(tmp_path: Path) -> None:
    log = tmp_path / "told"
    project = Project(tmp_path, toml=COMMAND.format(told=log))
    project.script("001_tell/000_train_0.sh", "train")
    project.shoal("submit", "experiments/001_tell", code=None)
    assert len(told(log)) == 1
    [done] = (project.home / "notices").glob("*.told")
    notifications.resend_unsent(str(project.home), project.env, now=time.time() + 700)
    assert len(told(log)) == 1
    done.unlink()
    notifications.resend_unsent(str(project.home), project.env)
    assert len(told(log)) == 1, "its teller may still be at it"
    for _ in range(2):
        notifications.resend_unsent(str(project.home), project.env, now=time.time() + 700)
    assert len(told(log)) == 2 and told(log)[0] == told(log)[1]
