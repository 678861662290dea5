"""`shoal attach` and `shoal forward`: a shell beside a running program, and a port of its node."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest

from project import Project, assert_clear_error, end_process, project_here
from shoal.job import Multiplexer
from shoal.job.port_forward import WINDOW, Connect
from shoal.sandbox import Sandbox
from terminal import run_in_terminal
from waiting import wait_until

#: Serves five megabytes at a free port of its own host until a file called `end` exists, and writes its port down.
SERVE = """\
import hashlib, http.server, json, os, sys, threading, time
BODY = os.urandom(5_000_000)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
told = {"port": server.server_port, "sha": hashlib.sha256(BODY).hexdigest()}
told.update(cwd=os.getcwd(), env=dict(os.environ))
with open(os.path.join(os.environ["PLACE"], "told.tmp"), "w") as file:
    json.dump(told, file)
os.rename(os.path.join(os.environ["PLACE"], "told.tmp"), os.path.join(os.environ["PLACE"], "told"))
while not os.path.exists(os.path.join(os.environ["PLACE"], "end")):
    time.sleep(0.1)
"""
NAME = "web/serve"
SHOW = "import json, os; print(json.dumps({'cwd': os.getcwd(), 'env': dict(os.environ)}))"


def start_server(project: Project, *flags: str) -> dict[str, object]:
    """Start the program as a run, and return what it wrote down about itself."""
    project.write("serve.py", SERVE)
    command = ["env", f"PLACE={project.root}", sys.executable, "serve.py"]
    submit = project.start("submit", "--name", "web", "--time", "10m", *flags, "--", *command)
    path = project.root / "told"
    try:
        wait_until(lambda: path.exists() or submit.poll() not in (None, 0), 60, "the program listens")
        assert path.exists(), submit.communicate()
        found: dict[str, object] = json.loads(path.read_text())
        return found
    finally:
        if project.cluster is not None:
            submit.communicate(timeout=300)


def assert_same_place(shown: str, told: dict[str, object]) -> None:
    """A command beside the program has its directory and variables, but not the mark of its attempt."""
    beside, program = json.loads(shown), told
    assert beside["cwd"] == program["cwd"]
    theirs = program["env"]
    assert isinstance(theirs, dict)
    wanted = {name: theirs[name] for name in ("SHOAL_RUN", "SHOAL_OUTPUT_DIR", "PATH") if name in theirs}
    assert len(wanted) >= 2 and wanted.items() <= beside["env"].items()
    assert "SHOAL_LEASE" in theirs and "SHOAL_LEASE" not in beside["env"]


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def forwarded(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("http://127.0.0.1:"), (line, process.stderr.read() if process.stderr else "")
    return line.split()[0]


@pytest.mark.slurm
def test_attach_and_forward_reach_the_node_of_a_run(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    told = start_server(project, "--mem", "200M")
    job = project.wait(NAME, "running")["job_id"]
    shown = project.shoal("attach", NAME, "--", sys.executable, "-c", SHOW)
    assert_same_place(shown.out, told)
    assert project.shoal("attach", "serve", "--", "sh", "-c", "exit 7", code=7).out == ""
    seen = run_in_terminal(
        ["attach", NAME], project.root, typed=b"tty; echo run is $SHOAL_RUN; exit\n", base=project.env, SHELL="/bin/sh"
    )
    assert f"attached to {NAME} on " in seen and "/dev/pts/" in seen and f"run is {NAME}" in seen

    plain = project.slurm("sbatch", "--parsable", "--mem=50", "--time=5", "--wrap", "sleep 300").strip()
    wait_until(lambda: project.slurm("squeue", "-h", "-j", plain, "-o", "%T").strip() == "RUNNING", 60, "it runs")
    shown = project.shoal("attach", plain, "--", "printenv", "SLURM_JOB_ID")
    assert shown.out.strip() == plain
    project.slurm("scancel", plain)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = str(taken.getsockname()[1])
        assert_clear_error(
            project.shoal("forward", NAME, str(told["port"]), "--local", busy, code=2), 2, busy, "--local"
        )
        process = project.start("forward", NAME, str(told["port"]), "--local", free_port())
        try:
            url = forwarded(process)

            def get(_: int) -> str:
                with urlopen(url, timeout=300) as answer:
                    return hashlib.sha256(answer.read()).hexdigest()

            with ThreadPoolExecutor(4) as pool:
                assert list(pool.map(get, range(8))) == [told["sha"]] * 8
            (project.root / "end").touch()
            assert process.wait(timeout=300) == 0
            assert process.stderr is not None and f"the job of {NAME} has ended" in process.stderr.read()
        finally:
            end_process(process)
    project.wait(NAME, "completed")
    assert_clear_error(project.shoal("attach", NAME, code=2), 2, "completed, not running", "shoal logs")
    wait_until(lambda: job not in project.slurm("squeue", "-h", "-o", "%A").split(), 60, "no step keeps the job")


@pytest.mark.slurm
def test_attach_tells_what_it_cannot_reach(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    project.shoal("submit", "--name", "wait", "--mem", "50M", "--time", "1m", "--begin", "now+1hour", "--", "true")
    project.wait("wait/run_true", "pending")
    assert_clear_error(project.shoal("attach", "wait/run_true", code=2), 2, "pending", "shoal why wait/run_true")
    assert_clear_error(project.shoal("forward", "wait/run_true", "6006", code=2), 2, "pending")
    project.shoal("cancel", "wait")
    told = start_server(project, "--mem", "200M")
    wrong = project.shoal("attach", NAME, "--node", "elsewhere", "--", "true", code=2)
    assert_clear_error(wrong, 2, "does not run on elsewhere", "--node")
    process = project.start("forward", NAME, "1", "--local", free_port())
    try:
        url = forwarded(process)
        with pytest.raises(OSError):
            urlopen(url, timeout=300)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
        assert "port 1 of" in err and "nothing listens there" in err
        assert process.returncode == 130
    finally:
        end_process(process)
    assert told["port"]
    (project.root / "end").touch()
    project.wait(NAME, "completed")


@pytest.mark.slow
def test_attach_beside_a_run_on_this_machine(tmp_path: Path) -> None:
    project = project_here(tmp_path)
    told = start_server(project)
    try:
        assert_same_place(project.shoal("attach", NAME, "--", sys.executable, "-c", SHOW).out, told)
        shown = project.shoal("forward", NAME, str(told["port"])).out
        assert f"http://127.0.0.1:{told['port']}" in shown
        for words in (("forward", NAME, "0"), ("forward", NAME, "65536"), ("forward", NAME, "http")):
            assert_clear_error(project.shoal(*words, code=2), 2, "is not a port")
        assert_clear_error(project.shoal("attach", "nothing", code=2), 2, "nothing")
    finally:
        (project.root / "end").touch()
    project.wait(NAME, "completed")


def test_a_slow_reader_does_not_stop_the_others() -> None:
    """Two connections over one channel: while one is not read at all, the other carries ten windows of data."""
    asyncio.run(_one_slow_reader())


async def _one_slow_reader() -> None:
    async def send_much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(10):
            writer.write(b"x" * WINDOW)
        await writer.drain()
        writer.write_eof()

    async with await asyncio.start_server(send_much, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        near, far = await _joined(lambda: asyncio.open_connection("127.0.0.1", port))
        runs = [asyncio.ensure_future(side.run()) for side in (near, far)]
        async with await asyncio.start_server(near.carry, "127.0.0.1", 0) as entry:
            here = entry.sockets[0].getsockname()[1]
            _slow_reader, slow = await asyncio.open_connection("127.0.0.1", here)
            reader, writer = await asyncio.open_connection("127.0.0.1", here)
            data = await asyncio.wait_for(reader.read(-1), 30)
            assert len(data) == 10 * WINDOW
            for one in (slow, writer):
                one.close()
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


async def _joined(connect: Connect) -> tuple[Multiplexer, Multiplexer]:
    """Two sides joined by sockets."""
    left, right = socket.socketpair()
    one, other = await asyncio.open_connection(sock=left), await asyncio.open_connection(sock=right)
    return Multiplexer(one), Multiplexer(other, connect)
