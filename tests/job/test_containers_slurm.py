"""Containers on a real Slurm whose nodes have their own addresses: charliecloud around real torch; pyxis's flags."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from images import container_of
from images import image as image
from launching import Launching, assert_nothing_left
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm

TWO_BY_TWO = "request = { nodes = 2, gpus = 2, cpus = 4, time = '10m' }"
TORCHRUN = f'launch = "torchrun"\n{TWO_BY_TWO}'
SRUN = f'launch = "srun"\n{TWO_BY_TWO}'
#: The example that trains, if it is in the image.
BOXED = "import os, runpy; assert os.path.exists('/in-image'); runpy.run_path('ddp.py', run_name='__main__')\n"


def _boxed(tmp_path: Path, cluster: Sandbox, image: Path, launch: str) -> Launching:
    project = Launching(tmp_path, cluster, boxed=f"{launch}\n{container_of(image)}")
    project.write("boxed.py", BOXED)
    return project


def test_ddp_trains_over_two_nodes_with_a_container_around_each_task(
    tmp_path: Path, host_cluster: Sandbox, image: Path
) -> None:
    project = _boxed(tmp_path, host_cluster, image, SRUN)
    name = project.submit("000_boxed_0", "boxed -- --steps 6")
    project.wait(name, "completed", deadline_s=180)
    starts = sorted(project.says(name, "start"), key=lambda said: said["rank"])
    assert [(said["rank"], said["world"], said["gpus"]) for said in starts] == [(rank, 4, "0,1") for rank in range(4)]
    assert len({said["host"] for said in starts}) == 2
    losses = [said["loss"] for said in project.says(name, "step") if said["rank"] == 0]
    assert losses[-1] < losses[0]


def test_ddp_under_torchrun_in_one_container_for_each_node_saves_when_it_is_told_to_stop(
    tmp_path: Path, host_cluster: Sandbox, image: Path
) -> None:
    project = _boxed(tmp_path, host_cluster, image, TORCHRUN)
    name = project.submit("000_boxed_0", "boxed -- --steps 100000 --save-every 100000 --pause 0.02")
    wait_until(lambda: project.says(name, "step"), 180, "it trains")
    project.slurm("scancel", str(project.status()[name]["job_id"]))
    project.wait(name, "cancelled", deadline_s=90)
    stopped = {said["rank"]: said for said in project.says(name, "stopped")}
    assert sorted(stopped) == [0, 1, 2, 3] and {said["world"] for said in stopped.values()} == {4}
    saved = [path.name for path in project.output(name).glob("model_*.pth")]
    assert saved == [f"model_{stopped[0]['step']:06d}.pth"]
    ranks = [json.loads(path.read_text()) for path in sorted(project.launch_folder(name).glob("rank-*.json"))]
    assert [rank["gpu"] for rank in ranks] == ["0", "1", "0", "1"], "the map of ranks to GPUs is written down"
    assert len({rank["host"] for rank in ranks}) == 2


def test_scancel_lets_contained_ranks_save_once_and_a_failing_one_gives_its_code(
    tmp_path: Path, host_cluster: Sandbox, image: Path
) -> None:
    line = container_of(image)
    project = Launching(
        tmp_path,
        host_cluster,
        show=f"{TORCHRUN}\n{line}",
        show_srun=f"{SRUN}\n{line}",
        show_one=f"{line}\n{TWO_BY_TWO}",
    )
    waiting = {project.submit("000_show_0", "show -- wait"): 4, project.submit("001_show_0", "show_one -- wait"): 1}
    failing = [
        project.submit("002_show_0", "show -- fail=3:7 wait"),
        project.submit("003_show_0", "show_srun -- fail=3:7 wait"),
    ]
    for name, ranks in waiting.items():
        assert [note["in_image"] for note in project.wait_notes(name, ranks)] == [True] * ranks
        project.slurm("scancel", str(project.status()[name]["job_id"]))
        assert [note["got"] for note in project.wait_notes(name, ranks, "saved")] == [["SIGTERM"]] * ranks
        project.wait(name)
    for name in failing:
        assert project.wait(name, "failed")["exit_code"] == 7
    assert_nothing_left(project.root)


def test_the_clusters_profile_brings_the_runtime_and_the_node_tells_what_is_missing(
    tmp_path: Path, host_cluster: Sandbox, image: Path
) -> None:
    steps = {"show": f'container = "{image}"', "show_bare": 'container = "none"', "show_pyxis": 'container = "pyxis:x"'}
    project = Launching(tmp_path, host_cluster, **steps)
    _write_profile(project, container_of(tmp_path / "gone"))
    inside, bare = project.submit("000_show_0", "show --time=5"), project.submit("001_show_0", "show_bare --time=5")
    gone, none = project.submit("002_train_0", "train --time=5"), project.submit("003_show_0", "show_pyxis --time=5")
    project.wait(inside, "completed")
    project.wait(bare, "completed")
    assert [note["in_image"] for name in (inside, bare) for note in project.notes(name)] == [True, False]
    assert project.wait(gone, "failed")["exit_code"] == 2
    assert f"there is no image {tmp_path / 'gone'} on " in project.log(gone)
    assert project.wait(none, "failed")["exit_code"] == 2
    assert "pyxis is not installed there" in project.log(none)


def _write_profile(project: Launching, line: str) -> None:
    toml = (project.root / "shoal.toml").read_text()
    project.write("shoal.toml", f'{toml}\n[clusters.boxes]\nmatch = {{ host = "*" }}\n{line}\n')


#: What pyxis does for srun, with charliecloud: every task starts in the container that srun's flags describe.
PYXIS = """\
#!{python}
import os, sys
words, own, box = sys.argv[1:], [], {{}}
if words == ["--help"]:
    print("--container-image")
    sys.exit()
while words and words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    if name.startswith("--container-"):
        box[name[12:]] = value
    else:
        own.append(name + ("=" + value if value else ""))
if box:
    binds = ["--bind=" + mount for mount in box["mounts"].split(",")]
    words = ["ch-run", *binds, "--cd=" + box["workdir"], box["image"], "--", *words]
    with open({log!r}, "a") as file:
        file.write(" ".join(words) + "\\n")
os.execv({srun!r}, ["srun", *own, *words])
"""


def test_pyxis_takes_the_container_as_flags_of_srun_in_every_launch(
    tmp_path: Path, host_cluster: Sandbox, image: Path
) -> None:
    """pyxis itself cannot be installed here; a stand-in for srun does with its flags what pyxis would."""
    line = container_of(image, "pyxis")
    one_node = 'launch = "torchrun"\nrequest = { nodes = 1, gpus = 2, cpus = 4, time = "10m" }'
    replicas = 'launch = "replicas"\nrequest = { nodes = 2, gpus = 1, cpus = 2, time = "10m" }'
    project = Launching(
        tmp_path,
        host_cluster,
        show=f"request = {{ gpus = 1, time = '10m' }}\n{line}",
        show_torchrun=f"{one_node}\n{line}",
        show_srun=f"{SRUN}\n{line}",
        diloco=f"{replicas}\n{line}",
    )
    srun = shutil.which("srun", path=project.env["PATH"])
    stand_in = project.write("bin/srun", PYXIS.format(python=sys.executable, srun=srun, log=str(tmp_path / "srun.log")))
    stand_in.chmod(0o755)
    _write_profile(project, f"setup = 'export PATH=\"{stand_in.parent}:$PATH\"'")
    runs = {
        project.submit("000_show_0", "show -- wait"): 1,
        project.submit("001_show_0", "show_torchrun -- wait"): 2,
        project.submit("002_show_0", "show_srun"): 4,
    }
    trained = project.submit("003_diloco_0", "diloco -- --rounds 4")
    for name, ranks in runs.items():
        assert [note["in_image"] for note in project.wait_notes(name, ranks)] == [True] * ranks
    alone = project.notes("001_a/000_show_0")[0]["env"]
    assert not {"RANK", "SLURM_NTASKS"} & set(alone), "a single program is no rank"
    for name in list(runs)[:2]:
        project.slurm("scancel", str(project.status()[name]["job_id"]))
        assert [note["got"] for note in project.wait_notes(name, runs[name], "saved")] == [["SIGTERM"]] * runs[name]
        project.wait(name)
    project.wait("001_a/002_show_0", "completed")
    project.wait(trained, "completed", deadline_s=180)
    losses = [said["loss"] for said in project.says(trained, "round") if said["replica"] == 0]
    assert losses[-1] < losses[0]
    assert "torchft_lighthouse --min_replicas=2" in (tmp_path / "srun.log").read_text()


def test_a_generated_script_starts_its_tasks_in_the_container(
    tmp_path: Path, host_cluster: Sandbox, image: Path
) -> None:
    project = Launching(
        tmp_path, host_cluster, show=f'env = {{ SHOAL_OUTPUT_DIR = "." }}\n{SRUN}\n{container_of(image)}'
    )
    (project.root / "logs").mkdir()
    project.shoal("generate", "--step", "show", "--extra-args=fail=3:7 wait", "--output-file", "job.sh")
    job = project.run(["sbatch", "--parsable", "job.sh"]).out.strip()
    told = wait_until(lambda: _ended(project, job), 120, f"job {job} ended")
    assert "ExitCode=7:0" in told
    notes = [json.loads(path.read_text().splitlines()[0]) for path in sorted(project.root.glob("rank-*.jsonl"))]
    assert [(note["env"]["RANK"], note["in_image"]) for note in notes] == [(str(rank), True) for rank in range(4)]


def _ended(project: Launching, job: str) -> str:
    told = project.slurm("scontrol", "show", "job", job)
    return told if "JobState=COMPLETED" in told or "JobState=FAILED" in told else ""
