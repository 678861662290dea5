"""The doctor and a real Slurm agree: what Slurm refuses the doctor refuses, with a request that Slurm then accepts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import MakeSandbox
from shoal.cli import main
from shoal.doctor.check import ask_cluster, check_scripts
from shoal.sandbox import Sandbox

pytestmark = pytest.mark.slurm

REFUSED = [
    ("--gres=gpu:9", {"D13", "D29"}),
    ("--gres=gpu:Fake:2", {"D12", "D29"}),
    ("--gpus-per-node=8\n--ntasks-per-node=8", {"D13", "D29"}),
    ("--cpus-per-task=99", {"D13", "D29"}),
    ("--mem=900G", {"D13", "D29"}),
    ("--mem-per-cpu=2G\n--cpus-per-task=8", {"D13", "D29"}),
    ("--nodes=9", {"D13", "D29"}),
    ("--time=9-00:00:00", {"D11", "D29"}),
    ("--partition=low\n--time=1-00:00:00", {"D11", "D29"}),
    ("--partition=nowhere", {"D13", "D29"}),
    ("--constraint=h100", {"D13", "D29"}),
    ("--array=0-9999", {"D21", "D29"}),
    ("--gres=gpu:8\n--cpus-per-task=64\n--mem=1T\n--time=30-00:00:00\n--nodes=12", {"D11", "D13", "D29"}),
]


@pytest.fixture
def slurm(cluster: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Sandbox]:
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf_path))
    monkeypatch.chdir(tmp_path)
    yield cluster


def write(folder: Path, header: str, body: str = "hostname\n") -> Path:
    lines = "".join(f"#SBATCH {line}\n" for line in header.splitlines())
    path = folder / "job.sh"
    path.write_text(f"#!/bin/bash\n#SBATCH --output=/dev/null\n{lines}\n{body}")
    return path


def doctor(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", *map(str, words)])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("header", "codes"), REFUSED, ids=[header.splitlines()[0] for header, _ in REFUSED])
def test_a_refused_request_comes_with_one_that_slurm_accepts(
    header: str, codes: set[str], slurm: Sandbox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, header)
    assert slurm.run("sbatch", "--test-only", str(path), check=False).returncode != 0
    code, document = doctor(path, capsys=capsys)
    errors = {one["code"] for one in document["findings"] if one["severity"] == "error"}
    assert code == 3
    assert errors == codes
    nearest = document["files"][0]["nearest"]
    assert nearest, "no accepted request was found"
    # The flags are what a person pastes: sbatch takes them, and the job is really in the queue.
    job = slurm.run("sbatch", "--parsable", "--hold", *shlex.split(nearest), str(path)).stdout.strip()
    assert slurm.run("squeue", "-h", "-j", job, "-o", "%r").stdout
    slurm.run("scancel", job)


@pytest.mark.parametrize(
    "header",
    [
        "--gres=gpu:4\n--mem=2G\n--time=1:00:00",
        "--partition=low\n--nodes=4\n--mem=1G\n--time=12:00:00",
        "--array=0-9%2\n--time=5:00",
    ],
)
def test_an_accepted_request_has_no_errors(
    header: str, slurm: Sandbox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, header)
    slurm.run("sbatch", "--test-only", str(path))
    code, document = doctor(path, capsys=capsys)
    assert code == 0
    assert document["cluster"] is True
    assert document["files"][0]["nearest"] is None


@pytest.mark.parametrize(
    "data",
    [
        b"#!/bin/bash\r\nhostname\r\n",
        b"#SBATCH --nodes=1\necho no shebang\n",
        b"\xef\xbb\xbf#!/bin/bash\nhostname\n",
        "#!/bin/bash\nhostname\n".encode("utf-16"),
        b"",
        b"#!/bin/bash\n#SBATCH --ntasks = 2\nhostname\n",
        b"#!/bin/bash\n#SBATCH --time=$T\nhostname\n",
        b"#!/bin/bash\n#SBATCH --time=\nhostname\n",
        b"#!/bin/bash\n#SBATCH --mem=1G --mem-per-cpu=1G\nhostname\n",
        b"#!/bin/bash\n#SBATCH --gres=gpus:1\nhostname\n",
    ],
)
def test_what_sbatch_cannot_read_the_doctor_refuses_without_asking_it(
    data: bytes, slurm: Sandbox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.sh"
    path.write_bytes(data)
    assert slurm.run("sbatch", "--test-only", str(path), check=False).returncode != 0
    code, document = doctor(path, "--no-cluster", capsys=capsys)
    assert code == 3, document


@pytest.mark.parametrize("line", ["  #SBATCH --gres=gpu:9", "#sbatch --gres=gpu:9", "x=1\n#SBATCH --gres=gpu:9"])
def test_what_sbatch_silently_ignores_the_doctor_refuses(
    line: str, slurm: Sandbox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.sh"
    path.write_text(f"#!/bin/bash\n{line}\nhostname\n")
    slurm.run("sbatch", "--test-only", str(path))  # accepted, although no node has nine GPUs
    assert doctor(path, "--no-cluster", capsys=capsys)[0] == 3


def test_the_facts_of_the_cluster_are_read_from_it(slurm: Sandbox) -> None:
    facts = ask_cluster(slurm.env(), "nobody")
    assert facts is not None
    assert facts.version is not None
    assert facts.version >= (20, 0)
    assert [(one.name, one.max_time_s) for one in facts.partitions] == [("main", 259200), ("low", 43200)]
    assert {(kind.cpus, kind.gpus, kind.gpu_types) for kind in facts.node_kinds} == {(16, 4, ("fake",))}
    assert facts.partition("low").preempts  # type: ignore[union-attr]
    assert not facts.partition("main").preempts  # type: ignore[union-attr]


def test_a_silent_slurm_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "--time=1:00:00")
    examined, cluster = check_scripts([path], {"PATH": "/usr/bin:/bin", "SLURM_CONF": "/nowhere/slurm.conf"})
    assert cluster is None
    assert examined[0].findings == []


def test_account_and_qos_that_are_not_mine_are_refused_with_mine(
    accounting_cluster: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(accounting_cluster.conf_path))
    path = write(tmp_path, "--account=nobody\n--qos=imaginary\n--time=1:00:00")
    code, document = doctor(path, capsys=capsys)
    assert code == 3
    assert {one["code"] for one in document["findings"] if one["severity"] == "error"} == {"D27", "D29"}
    nearest = document["files"][0]["nearest"]
    assert "--account=lab" in nearest
    accounting_cluster.run("sbatch", "--test-only", *shlex.split(nearest), str(path))


@pytest.mark.parametrize(
    ("header", "nearest"), [("--time=2-00:00:00", "--time="), ("--time=1:00:00\n-N 2 --gpus-per-node=8", None)]
)
def test_a_qos_that_is_too_small_is_said_although_sbatch_accepts_the_job(
    header: str,
    nearest: str | None,
    accounting_cluster: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(accounting_cluster.conf_path))
    path = write(tmp_path, f"--qos=high\n{header}")
    code, document = doctor(path, capsys=capsys)
    assert code == 3
    assert "D32" in [one["code"] for one in document["findings"]]
    proposed = document["files"][0]["nearest"]
    assert proposed is not None
    assert nearest is None or nearest in proposed
    accounting_cluster.run("sbatch", "--test-only", *shlex.split(proposed), str(path))


def test_maintenance_is_announced(
    make_sandbox: MakeSandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sandbox = make_sandbox("maint", nodes=1)
    monkeypatch.setenv("SLURM_CONF", str(sandbox.conf_path))
    sandbox.run("scontrol", "create", "reservation", "ReservationName=update", "StartTime=now+2hours", "Duration=60",
                "Flags=MAINT,IGNORE_JOBS", "Users=root", "Nodes=ALL")  # fmt: skip
    _, long = doctor(write(tmp_path, "--time=12:00:00"), capsys=capsys)
    _, short = doctor(write(tmp_path, "--time=01:00:00"), capsys=capsys)
    assert "D28" in [one["code"] for one in long["findings"]]
    assert "D28" not in [one["code"] for one in short["findings"]]
