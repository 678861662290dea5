"""Containers on this machine, for real: charliecloud around every launch, and podman where it runs."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from images import BINDS, container_of, make_image, why_not
from images import image as image
from launching import Launching, assert_nothing_left
from project import read_record
from test_docs import ROOT, execute
from waiting import wait_until

pytestmark = pytest.mark.slow

TORCHRUN = 'launch = { mode = "torchrun", processes = 2 }'
SRUN = 'launch = { mode = "srun", processes = 2 }'


@pytest.mark.parametrize("launch", ["", TORCHRUN, SRUN], ids=["process", "torchrun", "srun"])
def test_the_program_runs_in_the_image_and_finds_what_it_finds_without_one(
    tmp_path: Path, image: Path, launch: str
) -> None:
    project = Launching(tmp_path, show=f"{launch}\n{container_of(image)}")
    name = project.submit("000_show_0", "show -- hello 'a b'")
    notes = project.notes(name)
    world = 2 if launch else 1
    assert [(note["in_image"], note["cwd"], note["args"]) for note in notes] == [
        (True, str(project.root), ["hello", "a b"])
    ] * world
    if launch:
        assert [note["env"]["RANK"] for note in notes] == ["0", "1"]
        assert notes[0]["env"]["MASTER_PORT"] == notes[1]["env"]["MASTER_PORT"]
    assert (project.output(name) / "attempt-1.out").read_text().splitlines()[-1] == "rank 0 speaks"


@pytest.mark.parametrize("launch", ["", SRUN], ids=["process", "srun"])
def test_the_exit_code_comes_out_of_the_container(tmp_path: Path, image: Path, launch: str) -> None:
    project = Launching(tmp_path, show=f"{launch}\n{container_of(image)}")
    project.script("001_a/000_show_0.sh", f"show -- fail={1 if launch else 0}:9")
    project.shoal("submit", "experiments", code=None)
    assert project.status()["001_a/000_show_0"]["exit_code"] == 9
    assert_nothing_left(project.root)


@pytest.mark.parametrize("launch", ["", TORCHRUN], ids=["process", "torchrun"])
def test_signals_go_into_the_container(tmp_path: Path, image: Path, launch: str) -> None:
    project = Launching(tmp_path, show=f"{launch}\n{container_of(image)}")
    project.script("001_a/000_show_0.sh", "show -- wait")
    world = 2 if launch else 1
    running = project.start("submit", "experiments")
    project.wait_notes("001_a/000_show_0", world, running=running)
    agent = read_record(next((project.home / "runs/001_a/000_show_0").glob("attempt.1.start")))["pid"]
    os.kill(agent, signal.SIGUSR1)
    os.kill(agent, signal.SIGTERM)
    saved = project.wait_notes("001_a/000_show_0", world, "saved")
    assert [sorted(note["got"]) for note in saved] == [["SIGTERM", "SIGUSR1"]] * world
    running.communicate(timeout=300)
    assert project.records("001_a/000_show_0", "attempt.1.end")[0]["stopped_by"] == "SIGTERM"
    assert_nothing_left(project.root)


def test_runs_of_a_pack_are_contained_one_by_one_and_find_their_data(tmp_path: Path, image: Path) -> None:
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers" / "one").write_text("1")
    project = Launching(tmp_path, show=f'data = {{ numbers = "{tmp_path}/numbers" }}\n{container_of(image)}')
    project.write("show.py", _SHOW_DATA)
    (tmp_path / "scratch").mkdir()
    project.env["SHOAL_SCRATCH"] = str(tmp_path / "scratch")
    project.write("experiments/001_a/000_show.toml", 'step = "show"\nseeds = "0-3"\n')
    project.shoal("submit", "experiments", "--layout", "pack", "--slots", "2")
    said = [json.loads(path.read_text()) for path in (project.root / "outputs").glob("show/*/*/*/said.json")]
    assert said == [[True, True, "1"]] * 4


_SHOW_DATA = """\
import json, os
folder = os.environ["SHOAL_DATA_NUMBERS"]
data = open(os.path.join(folder, "one")).read()
staged = folder.startswith(os.environ["SHOAL_SCRATCH"])
with open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "said.json"), "w") as file:
    json.dump([os.path.exists("/in-image"), staged, data], file)
"""


def test_outputs_behind_a_link_and_a_secret_reach_the_program_and_no_command_line(tmp_path: Path, image: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    project = Launching(tmp_path, show=container_of(image))
    (project.root / "outputs").symlink_to(elsewhere)
    project.write("show.py", _SHOW_SECRET)
    config = tmp_path / "config" / "shoal"
    config.mkdir(parents=True)
    (config / "secrets.env").write_text("MY_KEY=tell-nobody\n")
    (config / "secrets.env").chmod(0o600)
    project.env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    name = project.submit("000_show_0", "show")
    assert (project.output(name) / "key").read_text() == "tell-nobody"
    assert "tell-nobody" not in (project.output(name) / "words").read_text()


_SHOW_SECRET = """\
import os
assert os.path.exists("/in-image")
for name, text in (("key", os.environ["MY_KEY"]), ("words", open("/proc/self/cmdline").read())):
    with open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], name), "w") as file:
        file.write(text)
"""


def test_replicas_run_in_containers_and_so_does_their_lighthouse(tmp_path: Path, image: Path) -> None:
    replicas = 'launch = { mode = "replicas", replicas_per_node = 2 }'
    project = Launching(tmp_path, show=f"{replicas}\n{container_of(image)}")
    name = project.submit("000_show_0", "show")
    notes = project.notes(name)
    assert [note["in_image"] for note in notes] == [True] * 2
    assert {note["env"]["SHOAL_REPLICA"] for note in notes} == {"0", "1"}
    assert "Lighthouse listening on" in (project.launch_folder(name) / "lighthouse.log").read_text()
    assert_nothing_left(project.root)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            'container = "apptainer:{image}"',
            "there is no program apptainer on {node} for the container: install it, or run ",
        ),
        (
            container_of("{image}", binds=["/usr", "/not/there"]),
            "/not/there is to be bound into the container and does",
        ),
        (container_of("{image}", binds=["/usr", "{elsewhere}:/not-in-it"]), "mkdir -p {image}/not-in-it"),
        (container_of("{image}", binds=["$NOT_SET/data"]), "$NOT_SET is not set in the job"),
    ],
    ids=["runtime", "bind", "mount point", "variable"],
)
def test_what_is_missing_on_the_node_is_told_before_anything_starts(
    tmp_path: Path, image: Path, line: str, said: str
) -> None:
    project = Launching(tmp_path, show=line.replace("{image}", str(image)).replace("{elsewhere}", str(tmp_path)))
    project.script("001_a/000_show_0.sh", "show")
    assert project.shoal("submit", "experiments", code=None).code == 2
    assert said.format(image=image, node=os.uname().nodename) in project.log("001_a/000_show_0")
    assert not project.notes("001_a/000_show_0")


def test_an_image_that_is_not_there_is_told_before_a_run_is_made(tmp_path: Path) -> None:
    project = Launching(tmp_path, show='container = "apptainer:images/torch.sif"')
    project.script("001_a/000_show_0.sh", "show")
    told = project.shoal("submit", "experiments", code=2)
    assert f"error: container of 001_a/000_show_0: there is no image {project.root}/images/torch.sif" in told.err
    assert not (project.root / "outputs").exists()


def test_podman_runs_the_program_and_leaves_no_container_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = make_image(tmp_path / "image", tmp_path)
    # Its own defaults may be more than this user is allowed.
    files, processes = resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4096
    own = [f"nofile={files}:{files}", f"nproc={processes}:{processes}"]
    config = tmp_path / "containers.conf"
    config.write_text(f'[engine]\nruntime = "runc"\n[containers]\ndefault_ulimits = {json.dumps(own)}\n')
    monkeypatch.setenv("CONTAINERS_CONF", str(config))
    binds = [word for path in BINDS for word in ("--volume", f"{path}:{path}")]
    trial = ["podman", "run", "--rm", "--network=host", "--pid=host", *binds, "--rootfs", str(image), sys.executable]
    reason = why_not(*trial, "-c", "")
    if reason is not None:
        pytest.skip(f"podman cannot run here: {reason}")
    line = container_of(image, "podman")
    project = Launching(tmp_path, show=line, show_ranks=f"{TORCHRUN}\n{line}")
    one = project.submit("000_show_0", "show")
    project.script("001_a/001_show_0.sh", "show_ranks -- wait")
    running = project.start("submit", "experiments/001_a/001_show_0.sh")
    notes = project.notes(one) + project.wait_notes("001_a/001_show_0", 2, running=running)
    assert [note["in_image"] for note in notes] == [True] * 3
    assert [note["env"]["RANK"] for note in notes[1:]] == ["0", "1"]
    agent = read_record(next((project.home / "runs/001_a/001_show_0").glob("attempt.1.start")))["pid"]
    os.kill(agent, signal.SIGTERM)
    project.wait_notes("001_a/001_show_0", 2, "saved")
    running.communicate(timeout=300)
    wait_until(lambda: str(image) not in _podman_containers(), 30, "no container is left")
    assert_nothing_left(project.root)


def _podman_containers() -> str:
    argv = ["podman", "ps", "--all", "--no-trunc", "--format", "{{.Image}} {{.Command}} {{.Mounts}}"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_a_newcomer_can_follow_the_page(tmp_path: Path, image: Path) -> None:
    done = execute(ROOT / "docs" / "containers.md", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
