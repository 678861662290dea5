"""shoal doctor as a command: what it prints, exit codes, fixes beside the script, numbers, and unwelcome files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import main
from shoal.doctor.edits import WAIT_FOR_ALL

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
    assert set(fixed["codes"]) == {"D01", "D03", "N01", "R06", "R09", "S02", "S10"}
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
        "srun --kill-on-bad-exit=1 python train.py --resume x | tee log",
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
    assert fixed.read_text().endswith(f"done\n{WAIT_FOR_ALL}\n")
    assert subprocess.run(["bash", "-n", fixed], check=False).returncode == 0


HEADER = "#!/bin/bash\n#SBATCH --time=1:00:00\n#SBATCH --mem=4G\n"


@pytest.mark.parametrize(
    ("code", "header", "body", "fixed_body"),
    [
        ("S06", "", "srun -n1 bash -c 'srun python a.py'\n", ["srun --overlap -n1 bash -c 'srun python a.py'"]),
        (
            "S14",
            "--nodes=2",
            "srun -N2 torchrun --nnodes 2 --node_rank $SLURM_NODEID --rdzv-endpoint $SLURM_LAUNCH_NODE_IPADDR:1 a.py\n",
            [
                "srun --kill-on-bad-exit=1 -N2 bash -c 'torchrun --nnodes 2 --node_rank $SLURM_NODEID "
                "--rdzv-endpoint $SLURM_LAUNCH_NODE_IPADDR:1 a.py'"
            ],
        ),
        (
            "S15",
            "--nodes=2",
            "srun -N1 -w a torchrun --node_rank=0 a.py\nsrun -N1 -w b torchrun \\\n  --node_rank=1 a.py\n",
            [
                "srun --kill-on-bad-exit=1 -N1 -w a torchrun --node_rank=0 a.py &",
                "srun --kill-on-bad-exit=1 -N1 -w b torchrun \\",
                "  --node_rank=1 a.py &",
                WAIT_FOR_ALL,
            ],
        ),
        (
            "R03",
            "--signal=B:USR1@300",
            "trap 'kill -USR1 $pid' USR1\nsrun python a.py --resume x\necho end\n",
            [
                "trap 'kill -USR1 $pid' USR1",
                "srun python a.py --resume x &",
                "pid=$!",
                "wait $pid || wait $pid",
                "echo end",
            ],
        ),
        (
            "N04",
            "--nodes=2",
            "srun bash -c 'MASTER_PORT=$((10000 + RANDOM % 9999)) python a.py'\n",
            ["srun --kill-on-bad-exit=1 bash -c 'MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) python a.py'"],
        ),
        ("D33", "--array=0..9%2", "python a.py\n", ["python a.py"]),
    ],
)
def test_each_mechanical_fix_leaves_a_script_without_that_error(
    here: Path, capsys: pytest.CaptureFixture[str], code: str, header: str, body: str, fixed_body: list[str]
) -> None:
    text = HEADER + (f"#SBATCH {header}\n" if header else "") + body
    (here / "job.sh").write_text(text)
    _, document = as_json(here / "job.sh", "--fix", "--select", f"{code},R09", capsys=capsys)
    (fixed,) = document["fixed"]
    assert code in fixed["codes"] and fixed["left"] == []
    assert [line for line in (here / "job.fixed.sh").read_text().splitlines() if line[0] != "#"] == fixed_body
    assert subprocess.run(["bash", "-n", here / "job.fixed.sh"], check=False).returncode == 0


@pytest.mark.parametrize(
    ("code", "header", "body"),
    [
        ("S06", "--ntasks=4", "srun bash -c 'srun python a.py'\n"),  # which of the two is meant to start four?
        (
            "S14",
            "--nodes=2",
            "head=$(hostname)\nsrun torchrun --node_rank $SLURM_NODEID --rdzv-endpoint $head:1 a.py\n",
        ),
        ("D33", "--array=0-N", "python a.py\n"),
    ],
)
def test_what_a_fix_would_have_to_guess_is_not_written(
    here: Path, capsys: pytest.CaptureFixture[str], code: str, header: str, body: str
) -> None:
    (here / "job.sh").write_text(f"{HEADER}#SBATCH {header}\n{body}")
    _, document = as_json(here / "job.sh", "--fix", "--select", code, capsys=capsys)
    assert [finding["code"] for finding in document["findings"]] == [code] and not document.get("fixed")
    assert not (here / "job.fixed.sh").exists()


def test_nothing_is_written_when_nothing_is_mechanical(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor(write(here / "job.sh", GOOD), "--fix", capsys=capsys)
    assert sorted(path.name for path in here.iterdir()) == ["job.sh"]


def test_a_fix_is_checked_again_until_nothing_mechanical_is_left(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        here / "job.sh",
        "#!/bin/bash\n#SBATCH -n 1 -c 32 --gres=gpu:4\n#SBATCH --mem=64G\n#SBATCH --time=1:00:00\n"
        "#SBATCH --output=logs/%A/%a.out\n#SBATCH --array=0-3%2\n"
        "python train.py --devices 4 --strategy ddp\necho finished\n",
    )
    _, document = as_json(here / "job.sh", "--fix", capsys=capsys)
    (fixed,) = document["fixed"]
    assert (here / "job.fixed.sh").read_text().splitlines() == [
        "#!/bin/bash",
        "#SBATCH --gres=gpu:4",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --mem=64G",
        "#SBATCH --time=1:00:00",
        "#SBATCH --output=logs/%A-%a.out",
        "#SBATCH --array=0-3%2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --nodes=1",
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
        "set -eo pipefail",
        "srun --kill-on-bad-exit=1 python train.py --devices 4 --strategy ddp",
        "echo finished",
    ]
    assert fixed["directories"] == ["logs"]
    assert (here / "logs").is_dir()
    assert fixed["left"] == []
    assert (fixed["accepted"], fixed["smoke"]) == (None, None)  # no cluster was asked


# --- findings that are known


def codes(document: dict[str, Any]) -> list[str]:
    return [one["code"] for one in document["findings"]]


def test_a_comment_ignores_a_code_on_its_line_below_it_or_in_the_file(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = "#!/bin/bash\n#SBATCH --time=1:00:00\n#SBATCH --mem=4G --mem-per-cpu=1G{}\n"
    path = write(here / "job.sh", header.format("") + "export MASTER_PORT=29500\npython train.py | \\\n  tee log\n")
    assert codes(as_json(path, capsys=capsys)[1]) == ["D15", "N01", "S02"]
    write(path, header.format(" # shoal: ignore D15") + "export MASTER_PORT=29500  # shoal: ignore S02\npython a.py\n")
    code, document = as_json(path, capsys=capsys)
    assert (code, codes(document), document["files"][0]["ignored"]) == (0, ["N01"], 1)
    body = "# shoal: ignore S02, S01\npython train.py \\\n  --lr 1 | tee log\n# shoal: ignore-file N01\n"
    write(path, header.format(" # shoal: ignore D15") + "export MASTER_PORT=29500\n" + body)
    assert doctor(path, capsys=capsys) == (0, "1 script: nothing found (3 ignored)\n")


def test_select_and_ignore_take_codes_and_beginnings_of_codes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(here / "bad.sh", BAD)
    everything = codes(as_json(path, capsys=capsys)[1])
    assert {"G01", "R09"} <= set(everything)
    assert set(codes(as_json(path, "--select", "G", capsys=capsys)[1])) == {
        code for code in everything if code[0] == "G"
    }
    code, document = as_json(path, "--select", "G,R", "--ignore", "g0", capsys=capsys)
    assert (code, "G01" in codes(document), "R09" in codes(document)) == (0, False, True)
    assert main(["doctor", "--no-cluster", "--select", "Q7", str(path)]) == 2
    assert "invalid --select 'Q7': expected codes such as G16" in capsys.readouterr().err


def test_a_baseline_keeps_known_findings_quiet_and_reports_new_ones(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(here / "bad.sh", BAD)
    assert doctor(path, "--write-baseline", "known.json", capsys=capsys)[0] == 0
    assert as_json(path, "--baseline", "known.json", capsys=capsys)[1]["findings"] == []
    # Lines above move the known findings; a second call of the same kind is new.
    write(path, BAD.replace("\n\n", "\n# a note\n\nexport MASTER_PORT=29500\n") + "srun python train.py --again\n")
    code, document = as_json(path, "--baseline", here / "known.json", capsys=capsys)
    found = {(one["code"], one["line"]) for one in document["findings"]}
    assert ("N01", 7) in found
    assert not any(line == 4 for _, line in found)
    assert code == 0
    write(here / "broken.json", "{}")
    assert main(["doctor", "--no-cluster", str(path), "--baseline", "broken.json"]) == 2
    assert main(["doctor", "--no-cluster", str(path), "--baseline", "missing.json"]) == 74
    assert main(["doctor", "--no-cluster", str(path), "--smoke"]) == 2
    assert capsys.readouterr().err.count("hint: ") == 3


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


def test_explain_reads_the_command_line_and_lists_what_it_could_not_read(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=1 --gpus-per-node=4 -c 32\n#SBATCH --mem=256G -t 1-0\n"
    launch = "srun torchrun --nnodes=2 --nproc-per-node=4 --rdzv-endpoint=$H:$P train.py"
    words = "--model_name_or_path org/Base-7b --fsdp full_shard --per_device_train_batch_size 2 --learning-rate=1e-5"
    write(here / "job.sh", f"{header}{launch} {words} --gradient_accumulation_steps 4 data.num_workers=6\n")
    _, document = as_json(here / "job.sh", "--explain", capsys=capsys)
    (found,) = document["geometry"]
    assert (found["batch_per_process"], found["effective_batch"]) == (2, 2 * 8 * 4)
    assert (found["learning_rate"], found["workers_per_process"], found["workers_per_node"]) == (1e-5, 6, 24)
    assert found["gpu_memory_mb"] == 7_000_000_000 * 16 // 8 // 2**20
    assert found["unread"] == []
    assert any("8e-05" in note and "2.83e-05" in note for note in found["notes"])
    write(here / "job.sh", f"{header}{launch} --global-batch-size 512 --lora\n")
    _, out = doctor(here / "job.sh", "--explain", capsys=capsys)
    assert "batch size           512\n" in out
    assert "not read             learning rate (--lr), loader workers (--workers), model size, and so GPU memory" in out
    assert "read from            --global-batch-size=512" in out


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


@pytest.mark.slow
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
