"""Containers as words: what is typed for each runtime, how settings come together, and what is refused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from project import Project, assert_clear_error
from shoal.job.launch.container import (
    Container,
    ContainerError,
    all_binds,
    build_container,
    container_argv,
    merge_settings,
    missing_on_node,
    parse_bind,
    resolve_container,
)
from shoal.job.launch.launcher_args import launcher_argv
from shoal.job.launch.rank_group import RankGroup

DATA = ["/data", "/scratch:/scratch:ro"]


def typed(runtime: str, image: str = "/img/torch.sif", *, gpus: bool = True, root: bool = False, **more: object) -> str:
    """The words for a program in /proj, as one line."""
    one = Container(runtime, image, **{"binds": DATA, **more})  # type: ignore[arg-type]
    return " ".join(container_argv(one, ["/proj", "/proj/outputs"], "/proj", gpus, root))


@pytest.mark.parametrize("runtime", ["apptainer", "singularity"])
def test_apptainer_and_singularity(runtime: str) -> None:
    assert typed(runtime, options=["--writable-tmpfs"]) == (
        f"{runtime} exec --nv --bind /data:/data --bind /scratch:/scratch:ro --bind /proj:/proj --pwd /proj "
        "--writable-tmpfs /img/torch.sif"
    )
    assert typed(runtime, gpu="amd").startswith(f"{runtime} exec --rocm --bind")
    assert typed(runtime, gpu="none").startswith(f"{runtime} exec --bind")
    assert typed(runtime, gpus=False).startswith(f"{runtime} exec --bind"), "no GPU asked for, no flag"
    assert typed(runtime, "docker://pytorch/pytorch").endswith(" docker://pytorch/pytorch")


def test_charliecloud() -> None:
    assert typed("charliecloud", "/img/torch", binds=["/data"], workdir="/work", options=["--set-env"]) == (
        "ch-run --bind=/data:/data --bind=/proj:/proj --cd=/work --set-env /img/torch --"
    )
    with pytest.raises(ContainerError, match="no read-only binds"):
        typed("charliecloud")


def test_podman() -> None:
    shared = "podman run --rm --network=host --ipc=host --pid=host --env-host --security-opt=label=disable"
    mounts = "--volume=/data:/data --volume=/scratch:/scratch:ro --volume=/proj:/proj"
    assert typed("podman", "localhost/torch:2") == (
        f"{shared} --userns=keep-id {mounts} --device=nvidia.com/gpu=all --workdir=/proj --entrypoint= "
        "localhost/torch:2"
    )
    assert typed("podman", "/img/torch", gpu="amd", root=True) == (
        f"{shared} {mounts} --device=/dev/kfd --device=/dev/dri --workdir=/proj --entrypoint= --rootfs /img/torch"
    )


def test_pyxis_is_flags_of_srun() -> None:
    assert typed("pyxis", "nvcr.io#nvidia/pytorch:25.01-py3", options=["--no-container-mount-home"]) == (
        "--container-image=nvcr.io#nvidia/pytorch:25.01-py3 "
        "--container-mounts=/data:/data,/scratch:/scratch:ro,/proj:/proj "
        "--container-workdir=/proj --no-container-mount-home"
    )


def test_one_container_stands_around_torchrun_and_its_ranks_are_started_by_the_images_python() -> None:
    group = RankGroup(
        mode="torchrun", nodes=["n1"], processes=2, gpus=2, argv=["python", "train.py"], cwd="/proj", log="/log/",
        id="1-1", start=["python", "-m", "torch.distributed.run"],
        wrapper=["/host/python", "-I", "-S", "/home/agent.pyz"],
        around=["apptainer", "exec", "/img/torch.sif"], inner=["python", "-I", "-S", "/home/agent.pyz"],
    )  # fmt: skip
    assert " ".join(launcher_argv(group, 0, None)) == (
        "apptainer exec /img/torch.sif python -m torch.distributed.run --standalone --nproc-per-node=2 "
        "--no-python python -I -S /home/agent.pyz rank /log/group.json"
    )
    assert group._replace(needs=["/"]).absent() is None
    node = os.uname().nodename
    assert group._replace(needs=["/", "/not/there"]).absent() == (
        f"there is no /not/there on {node}, and the container needs it"
    )


def test_a_folder_is_bound_with_what_its_links_point_to_and_not_twice(tmp_path: Path) -> None:
    (tmp_path / "proj").mkdir()
    (tmp_path / "fast" / "outputs").mkdir(parents=True)
    (tmp_path / "proj" / "outputs").symlink_to(tmp_path / "fast" / "outputs")
    places = [str(tmp_path / "proj"), str(tmp_path / "proj" / "outputs"), "/data/set"]
    assert [bind.source for bind in all_binds(Container("podman", "x", ["/data:/data:ro"]), ["/data/out"])] == [
        "/data", "/data/out",
    ], "what is bound for reading only is no place to write to"  # fmt: skip
    found = all_binds(Container("apptainer", "x.sif", ["/data"]), places)
    assert [bind.source for bind in found] == ["/data", str(tmp_path / "fast" / "outputs"), str(tmp_path / "proj")]


def test_a_step_over_its_cluster_adds_binds_and_keeps_options_of_the_same_runtime() -> None:
    cluster = {"runtime": "apptainer", "image": "a.sif", "binds": ["/data"], "options": ["--writable-tmpfs"]}
    step = merge_settings({"image": "b.sif", "binds": ["/more"]}, cluster)
    assert build_container(step) == Container("apptainer", "b.sif", ["/data", "/more"], options=["--writable-tmpfs"])
    assert build_container(merge_settings({"runtime": "podman", "image": "c"}, cluster)) == Container(
        "podman", "c", ["/data"]
    )
    assert build_container(merge_settings({"runtime": "none"}, cluster)) is None
    assert build_container(merge_settings({"image": "b.sif"}, {"runtime": "none"} | step)) is not None
    assert build_container(merge_settings({}, {"runtime": "apptainer", "binds": ["/data"]})) is None, (
        "without an image there is none"
    )
    with pytest.raises(ContainerError, match=r"nothing says how the image b\.sif is run"):
        build_container(merge_settings({"image": "b.sif"}, {}))


def test_paths_begin_at_the_project_and_names_come_from_the_job() -> None:
    spec = {"cwd": "/snapshot", "root": "/proj", "container": {
        "runtime": "apptainer", "image": "images/a.sif", "binds": ["$SCRATCH/data:/data", "more"],
    }}  # fmt: skip
    assert resolve_container(spec, {"SCRATCH": "/s"}) == Container(
        "apptainer", "/proj/images/a.sif", ["/s/data:/data", "/proj/more"]
    )
    with pytest.raises(ContainerError, match=r"\$SCRATCH is not set in the job"):
        resolve_container(spec, {})


def test_a_missing_runtime_is_answered_with_its_twin_or_with_a_module(tmp_path: Path) -> None:
    one, empty = Container("apptainer", "/img/torch.sif"), {"PATH": str(tmp_path)}
    assert 'setup = "module load apptainer"' in (missing_on_node(one, [], {**empty, "SLURM_JOB_ID": "1"}) or "")
    assert "install it" in (missing_on_node(one, [], empty) or "")
    (tmp_path / "singularity").write_text("#!/bin/sh\n")
    (tmp_path / "singularity").chmod(0o755)
    assert 'runtime = "singularity", which is there' in (missing_on_node(one, [], empty) or "")


@pytest.mark.parametrize("text", ["", ":/data", "/a:/b:/c", "/a,b", "/a:/b:wo", "/a\n"])
def test_what_is_not_a_bind_is_refused(text: str) -> None:
    with pytest.raises(ContainerError, match="is not a bind"):
        parse_bind(text)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('container = { image = "x", bind = ["/data"] }', "binds"),
        ('container = { image = "x", binds = ["/a:/b:/c"] }', "is not a bind"),
        ('container = { image = "x", options = ["--cleanenv"] }', "hides from the program what shoal tells it"),
        ('container = "apptainer:"', "container = 'apptainer:': expected an image"),
        ('container = "images/torch.sif"', "nothing says how the image images/torch.sif is run"),
        ('container = "pyxis:images/torch.sqsh"', "pyxis is a plugin of srun, and this machine is not Slurm"),
        ('container = "apptainer:images/torch.sif"', "there is no image"),
    ],
)
def test_a_wrong_container_is_told_before_anything_is_submitted(tmp_path: Path, line: str, said: str) -> None:
    project = Project(tmp_path, toml=f"\n[steps.boxed]\ncommand = 'true'\n{line}\n")
    project.script("001_a/000_boxed_0.sh", "boxed")
    done = project.shoal("submit", "experiments", "--on", "local", code=2)
    assert_clear_error(done, 2, said)
    assert not (project.root / "outputs").exists()


def test_an_unknown_runtime_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    project = Project(tmp_path, toml="\n[clusters.big.container]\nruntime = 'docker'\n")
    said = project.shoal("clusters", "show", "big", code=2).err
    assert "expected one of apptainer, charliecloud, none, podman, pyxis, singularity" in said


@pytest.mark.slow
def test_the_plan_and_its_script_show_the_container(tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        toml="""
[steps.boxed]
command = "python train.py"
launch = "torchrun"
container = "/img/my torch.sif"
request = { nodes = 2, gpus = 4 }
[clusters.big.container]
runtime = "apptainer"
binds = ["$SCRATCH"]
""",
    )
    project.script("001_a/000_boxed_0.sh", "boxed")
    project.script("001_a/001_boxed_0.sh", "boxed --container none")
    told = project.shoal("plan", "experiments", "--on", "big", "--script").out
    line = (
        f"container: apptainer exec --nv --bind '$SCRATCH:$SCRATCH' --bind {project.root}:{project.root} "
        f"--pwd {project.root} '/img/my torch.sif'   # around each node's launcher"
    )
    assert told.count(f"note: {line}") == 1
    assert told.count(f"# {line}") == 1
    assert """export SHOAL_CONTAINER='{"runtime": "apptainer", "binds": ["$SCRATCH"]}'""" in told
    shown = project.shoal("clusters", "show", "big").out
    assert "container.runtime\tapptainer\tshoal.toml:" in shown


@pytest.mark.slow
def test_an_experiment_names_its_own_image_and_another_image_is_another_run(tmp_path: Path) -> None:
    project = Project(tmp_path, toml="\n[clusters.big.container]\nruntime = 'apptainer'\n")
    digests = set()
    for image in ("/img/a.sif", "/img/b.sif"):
        project.write("experiments/001_a/000_train.toml", f'step = "train"\ncontainer = "{image}"\n')
        plan = project.shoal("plan", "experiments", "--on", "big", "--json").json
        assert image in plan["notes"][0]
        digests.add(plan["runs"][0]["digest"])
    assert len(digests) == 2
    python = project.write("experiments/002_b/sweep.py", _PYTHON)
    assert "/img/c.sif" in project.shoal("plan", python, "--on", "big", "--json").json["notes"][0]


_PYTHON = """\
import shoal
exp = shoal.Experiment("002_b")
exp.add("train", container={"image": "/img/c.sif", "binds": ["/data"]})
exp.submit()
"""


def test_runs_of_a_pack_cannot_be_contained_by_pyxis(tmp_path: Path) -> None:
    project = Project(tmp_path, toml="\n[clusters.big]\ncontainer = 'pyxis:/img/a.sqsh'\n")
    project.script("001_a/000_train_0.sh", "train")
    done = project.shoal("plan", "experiments", "--on", "big", "--layout", "pack", "--slots", 2, code=2)
    assert "runs of a pack are not started by srun" in done.err
    assert_clear_error(done, 2)


GENERATE = ("generate", "--config-file", "c.py", "--nodes", "2", "--gpus-per-node", "4", "-q")


@pytest.mark.parametrize(
    ("launch", "line"),
    [
        ("process", '"${container[@]}" python ./torchtitan/train.py'),
        ("torchrun", '"${container[@]}" torchrun --nnodes=2'),
        ("srun", """exec "$@"' rank \\\n    "${container[@]}" python"""),
        ("accelerate", """"${container[@]}" bash -c 'exec accelerate launch"""),
        ("deepspeed", """"${container[@]}" bash -c 'exec deepspeed"""),
        ("replicas", '"${container[@]}" torchft_lighthouse'),
    ],
)
def test_generate_writes_the_container_around_every_launch(tmp_path: Path, launch: str, line: str) -> None:
    script = Project(tmp_path).shoal(*GENERATE, "--launch", launch, "--container", "apptainer:$WORK/my torch.sif").out
    assert line in script
    assert 'apptainer exec --nv --bind "$PWD":"$PWD" --pwd "$PWD" "$WORK"' + "'/my torch.sif'" in script
    _check_bash(script)


@pytest.mark.parametrize("launch", ["process", "torchrun", "srun", "accelerate", "replicas"])
def test_generate_gives_pyxis_to_srun_also_on_one_node(tmp_path: Path, launch: str) -> None:
    flags = [*GENERATE[:4], "1", *GENERATE[5:]]
    script = Project(tmp_path).shoal(*flags, "--launch", launch, "--container", "pyxis:/img/torch.sqsh").out
    lines = script.replace("\\\n", " ").splitlines()
    assert [line for line in lines if '"${container[@]}"' in line] != []
    assert all("srun " in line for line in lines if '"${container[@]}"' in line)
    _check_bash(script)


def test_a_generated_script_stops_when_its_image_is_not_there(tmp_path: Path) -> None:
    project = Project(tmp_path)
    script = project.shoal(*GENERATE[:3], "--container", "apptainer:images/none.sif", "-q").out
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, check=False, env=dict(os.environ))
    assert (done.returncode, done.stderr) == (2, f"error: there is no image {project.root}/images/none.sif\n")


def _check_bash(script: str) -> None:
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
