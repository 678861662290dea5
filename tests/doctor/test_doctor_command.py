"""shoal doctor as a command: what it prints, exit codes, fixes beside the script, numbers, and unwelcome files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import main

BAD = "#!/bin/bash\n#SBATCH --time=1:00:00\n#SBATCH --gres=gpu:1\n#SBATCH --ntasks-per-node=8\n\nsrun python train.py\n"
GOOD = "#!/bin/bash\n#SBATCH --time=1:00:00\n#SBATCH --mem=4G\n\nset -e\npython train.py\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def doctor(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["doctor", "--no-cluster", *map(str, words)])
    return code, capsys.readouterr().out


def as_json(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code, out = doctor("--json", *words, capsys=capsys)
    return code, json.loads(out)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_errors_end_with_code_3_and_a_clean_script_with_0(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(write(here / "bad.sh", BAD), capsys=capsys)[0] == 3
    assert doctor(write(here / "good.sh", GOOD), capsys=capsys) == (0, "1 script: nothing found\n")


def test_warnings_count_only_with_strict(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(here / "job.sh", GOOD.replace("#SBATCH --time=1:00:00", "#SBATCH --time=24"))
    assert doctor(path, capsys=capsys)[0] == 0
    assert doctor(path, "--strict", capsys=capsys)[0] == 3


def test_the_json_document_has_the_promised_fields(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = as_json(write(here / "bad.sh", BAD), capsys=capsys)
    assert code == 3
    assert document["schema"] == 1
    first = document["findings"][0]
    assert first["code"] == "G01"
    assert first["severity"] == "error"
    assert first["line"] == 4
    assert {"message", "fix", "effect", "file", "title", "fixable"} <= set(first)
    assert document["files"][0]["worst"] == "error"


def test_a_finding_shows_place_code_effect_and_fix(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = doctor(write(here / "bad.sh", BAD), capsys=capsys)
    first, then, fix = out.splitlines()[:3]
    assert first.startswith(f"{here}/bad.sh:4: error G01 srun starts 8 tasks")
    assert then.startswith("    then  8 processes share 1 GPU")
    assert fix.startswith("    fix   --ntasks-per-node=1")
    _, quiet = doctor(here / "bad.sh", "-q", capsys=capsys)
    assert quiet.splitlines()[0] == first
    assert "then  " not in quiet


def test_a_folder_is_examined_with_all_its_scripts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "deep" / "er").mkdir(parents=True)
    write(here / "deep" / "a.slurm", BAD)
    write(here / "deep" / "er" / "b.sh", GOOD)
    write(here / "deep" / "notes.md", "nothing")
    code, document = as_json(here / "deep", capsys=capsys)
    assert code == 3
    assert [Path(one["file"]).name for one in document["files"]] == ["a.slurm", "b.sh"]


def test_fix_writes_a_corrected_script_that_is_clean_and_never_overwrites(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["#!/bin/bash", "#SBATCH --time=1:00:00", "#SBATCH --mem=4G", "#SBATCH --export=A=1", "#SBATCH --requeue",
             "export MASTER_PORT=29500", "#SBATCH --nodes=2", "srun python train.py --resume x | tee log"]  # fmt: skip
    path = here / "job.sh"
    path.write_bytes("\r\n".join(lines).encode())
    path.chmod(0o750)
    before = path.read_bytes()
    code, document = as_json(path, "--fix", capsys=capsys)
    assert code == 3
    assert path.read_bytes() == before
    (fixed,) = document["fixed"]
    assert set(fixed["codes"]) == {"D01", "D03", "N01", "R06", "S02", "S10"}
    new = here / "job.fixed.sh"
    assert new.read_text().splitlines() == [
        "#!/bin/bash",
        "#SBATCH --time=1:00:00",
        "#SBATCH --mem=4G",
        "#SBATCH --export=ALL,A=1",
        "#SBATCH --requeue",
        "#SBATCH --nodes=2",
        "#SBATCH --open-mode=append",
        "set -o pipefail",
        "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
        "srun python train.py --resume x | tee log",
    ]
    assert new.stat().st_mode & 0o777 == 0o750
    assert doctor(new, capsys=capsys)[0] == 0
    doctor(path, "--fix", capsys=capsys)
    assert (here / "job.fixed-2.sh").exists()


def test_a_fixed_script_is_good_bash(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        here / "job.sh", "#SBATCH --gres=gpu:1\nfor i in 1 2; do\n  srun --exact -n1 --gres=gpu:1 python a.py &\ndone\n"
    )
    doctor(here / "job.sh", "--fix", capsys=capsys)
    fixed = here / "job.fixed.sh"
    assert fixed.read_text().startswith("#!/bin/bash\n#SBATCH")
    assert fixed.read_text().endswith("done\nwait\n")
    assert subprocess.run(["bash", "-n", fixed], check=False).returncode == 0


def test_nothing_is_written_when_nothing_is_mechanical(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor(write(here / "job.sh", GOOD), "--fix", capsys=capsys)
    assert sorted(path.name for path in here.iterdir()) == ["job.sh"]


# --- geometry by construction


def test_explain_shows_the_product_of_processes_and_batch(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = "#!/bin/bash\n#SBATCH -N 1 --ntasks-per-node=8\n#SBATCH --gpus-per-node=8\n#SBATCH --cpus-per-task=16\n"
    write(here / "job.sh", f"{header}#SBATCH --mem=512G\n#SBATCH --time=1-0\nsrun -c 16 python train.py\n")
    words = ("--explain", "--batch-size", 22, "--lr", "1e-4", "--workers", 8)
    code, document = as_json(here / "job.sh", *words, capsys=capsys)
    (found,) = document["geometry"]
    assert code == 0
    assert (found["processes"], found["effective_batch"], found["devices_per_process"]) == (8, 176, 1.0)
    assert (found["workers_per_node"], found["memory_per_process_mb"], found["cpus_per_process"]) == (64, 65536, 16)
    assert any("0.0008" in note for note in found["notes"])
    assert any("not 8 times as fast" in note for note in found["notes"])
    _, out = doctor(here / "job.sh", *words, capsys=capsys)
    assert "batch size           8 x 22 = 176" in out
    assert [one["code"] for one in document["findings"] if one["code"] == "X05"] == ["X05"]


def test_explain_says_what_it_does_not_know(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, document = as_json(write(here / "job.sh", "#!/bin/bash\npython train.py\n"), "--explain", capsys=capsys)
    (found,) = document["geometry"]
    assert found["gpus_per_node"] is None
    assert found["memory_per_node_mb"] is None
    assert any("could not be read" in note for note in found["notes"])


@pytest.mark.parametrize("framework", ["lightning", "native", "torchrun", "accelerate", "deepspeed"])
def test_a_constructed_script_passes_the_doctor(framework: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--explain", "--framework", framework, "--nodes", "2", "--gpus", "4", "--workers", "7")
    assert main(["doctor", "--json", *words]) == 0
    (found,) = json.loads(capsys.readouterr().out)["geometry"]
    assert found["processes"] == 8
    header = "\n".join([*found["header"], "#SBATCH --time=1:00:00", "#SBATCH --mem=64G"])
    exports = (
        "export OMP_NUM_THREADS=1\nexport MASTER_ADDR=$(scontrol show hostnames | head -n 1)\nexport MASTER_PORT=$P\n"
    )
    write(here / "made.sh", f"#!/bin/bash\n{header}\n{exports}{found['command']}\n")
    _, checked = as_json(here / "made.sh", capsys=capsys)
    assert [one for one in checked["findings"] if one["severity"] != "hint"] == []


def test_a_framework_that_is_unknown_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--explain", "--framework", "horovod", "--gpus", "8"]) == 2
    assert main(["doctor"]) == 2
    assert "name a script" in capsys.readouterr().err


# --- unwelcome files


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("binary.sh", bytes(range(256)) * 20, "D30"),
        ("utf16.sh", "#!/bin/bash\necho hi\n".encode("utf-16"), "D30"),
        ("crlf.sh", GOOD.replace("\n", "\r\n").encode(), "D03"),
        ("nothing.sh", b"", "D30"),
        ("blank.sh", b"\n\n  \n", "D30"),
        ("nul.sh", b"#!/bin/bash\necho a\0b\n" + b"#" * 5000, "D30"),
        ("plain.sh", b"echo hi\n", "D04"),
        ("half.sh", b"#!/bin/bash\ncat <<EOF\nhi\n", "D31"),
        ("tcsh.sh", b"#!/bin/tcsh\n#SBATCH --time=24\nif ($?X) then\n", "D10"),
        ("perl.sh", b"#!/usr/bin/perl\n#SBATCH --mem=64\nprint;\n", "D14"),
        ("prog.sh", b"#!/usr/bin/env python3\n#SBATCH --time=$T\nprint()\n", "D05"),
    ],
)
def test_any_file_is_answered_with_a_finding(
    name: str, data: bytes, code: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / name).write_bytes(data)
    exit_code, document = as_json(here / name, capsys=capsys)
    assert exit_code in (0, 3)
    assert code in [one["code"] for one in document["findings"]]


def test_a_huge_script_is_read_at_its_beginning_and_said_to_be(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (here / "huge.sh").open("w") as file:
        file.write("#!/bin/bash\n#SBATCH --time=24\n")
        for number in range(250_000):
            file.write(f"echo line number {number}\n")
    code, document = as_json(here / "huge.sh", capsys=capsys)
    found = {one["code"]: one["message"] for one in document["findings"]}
    assert code == 3  # larger than Slurm's own limit
    assert "only its beginning was checked" in found["D31"]
    assert {"D10", "D30"} <= set(found)


def test_a_missing_file_an_empty_folder_and_a_device_are_said_in_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "empty").mkdir()
    assert main(["doctor", "missing.sh"]) == 2
    assert main(["doctor", "empty"]) == 2
    assert main(["doctor", "/dev/zero"]) == 2
    assert capsys.readouterr().err.count("error: ") == 3


def test_a_file_that_may_not_be_read_is_said(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    write(here / "secret.sh", GOOD)
    monkeypatch.setattr("shoal.doctor.check.read_text", refuse)  # root reads everything
    assert main(["doctor", "--no-cluster", "secret.sh"]) == 74
    assert "secret.sh cannot be read: Permission denied" in capsys.readouterr().err


def test_control_characters_of_a_script_do_not_reach_the_terminal(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "job.sh").write_bytes(
        b"#!/bin/bash\n#SBATCH --time=1:00:00\n#SBATCH --partition=\x1b[31mred$X\npython a.py\n"
    )
    _, out = doctor(here / "job.sh", capsys=capsys)
    assert "\x1b" not in out
