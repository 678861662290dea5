"""Which checkpoint a run continues from: the newest by name, never a torn or empty one."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import pytest

from shoal.kernel import checkpoints


def _write(folder: Path, *names: str) -> None:
    """Files, each a second younger than the one before."""
    for age, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("weights")
        os.utime(path, (10**9 + age, 10**9 + age))


def _newest(folder: Path, pattern: str) -> str | None:
    path = checkpoints.newest_checkpoint(str(folder), pattern)
    return None if path is None else os.path.relpath(path, folder)


def test_the_newest_is_the_highest_by_number_and_half_written_names_are_passed_over(tmp_path: Path) -> None:
    _write(
        tmp_path, "model_9.pth", "model_10.pth", "model_2.pth", "model_11.pth.tmp", "other_99.pth", "tmp-model_12.pth"
    )
    (tmp_path / "model_12.pth").touch()
    assert _newest(tmp_path, "model_*.pth") == "model_10.pth" and _newest(tmp_path, "*_1*") == "model_10.pth"
    assert _newest(tmp_path / "nothing[0]", "model_*.pth") is None


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (("last-v2.ckpt", "last-v1.ckpt", "last.ckpt"), "last-v2.ckpt"),
        (("last-v10.ckpt", "last-v9.ckpt", "last.ckpt"), "last-v10.ckpt"),
        (("epoch=10-step=40.ckpt", "epoch=9-step=36-v1.ckpt", "epoch=9-step=36.ckpt"), "epoch=10-step=40.ckpt"),
        (("model_9.ckpt", "last.ckpt"), "last.ckpt"),
        (("last.ckpt", "model_9.ckpt"), "model_9.ckpt"),
        (("best.ckpt", "epoch_009.ckpt", "epoch_008.ckpt", "last.ckpt"), "last.ckpt"),
    ],
)
def test_versions_of_a_name_and_names_of_several_kinds(names: tuple[str, ...], newest: str, tmp_path: Path) -> None:
    _write(tmp_path, *names)
    assert _newest(tmp_path, "*.ckpt") == newest


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("model_0030.pth", 30),
        ("last.ckpt", None),
        ("last-v2.ckpt", None),
        ("epoch=3-step=12.ckpt", 12),
        ("step=12-epoch=3.ckpt", 12),
        ("epoch=3-val_loss=0.32.ckpt", 3),
        ("acc0.93.pt", None),
        ("checkpoint-500", 500),
        ("weights.h5", None),
        ("iter_100.pth.tar", 100),
    ],
)
def test_the_step_in_a_name(name: str, step: int | None) -> None:
    assert checkpoints.step_of(f"/outputs/20261115_101500/{name}") == step


@pytest.mark.slow
def test_a_torn_file_is_never_chosen(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for step in (1, 2):
        torch.save({"weights": torch.zeros(5000)}, tmp_path / f"model_{step}.pt")
    whole = (tmp_path / "model_2.pt").read_bytes()
    (tmp_path / "model_2.pt").write_bytes(whole[: len(whole) // 2])
    assert _newest(tmp_path, "model_*.pt") == "model_1.pt"
    (tmp_path / "model_2.pt").write_bytes(whole)
    assert _newest(tmp_path, "model_*.pt") == "model_2.pt"
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    tensors = struct.pack("<Q", len(header)) + header + bytes(16)
    (tmp_path / "a_1.safetensors").write_bytes(tensors)
    (tmp_path / "a_2.safetensors").write_bytes(tensors[:-1])
    assert _newest(tmp_path, "*.safetensors") == "a_1.safetensors"
    (tmp_path / "s_1.pkl").write_bytes(pickle.dumps([1, 2]))
    (tmp_path / "s_2.pkl").write_bytes(pickle.dumps([1, 2])[:-1])
    assert _newest(tmp_path, "*.pkl") == "s_1.pkl"


def test_a_folder_counts_when_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "model_1").mkdir()
    assert _newest(tmp_path, "model_*") is None, "an empty folder"
    _write(tmp_path, "model_1/weights.txt", "model_2/weights.pt.tmp")
    assert _newest(tmp_path, "model_*") == "model_1"
    # Hugging Face's Trainer writes its state last
    _write(
        tmp_path, "checkpoint-5/training_args.bin", "checkpoint-5/trainer_state.json", "checkpoint-10/training_args.bin"
    )
    assert _newest(tmp_path, "checkpoint-*") == "checkpoint-5"
    _write(tmp_path, "checkpoint-10/trainer_state.json")
    assert _newest(tmp_path, "checkpoint-*") == "checkpoint-10"
    (tmp_path / "checkpoint-10/model.safetensors").touch()
    assert _newest(tmp_path, "checkpoint-*") == "checkpoint-5"
    # torch.distributed.checkpoint writes .metadata last
    _write(tmp_path, "dcp_1/__0_0.distcp", "dcp_1/.metadata", "dcp_2/__0_0.distcp")
    assert _newest(tmp_path, "dcp_*") == "dcp_1"
    # DeepSpeed and Megatron name the last whole one in a file beside them
    _write(
        tmp_path, "ds/global_step10/a.txt", "ds/global_step20/a.txt", "mg/iter_0000010/a.txt", "mg/iter_0000020/a.txt"
    )
    (tmp_path / "ds/latest").write_text("global_step10")
    (tmp_path / "mg/latest_checkpointed_iteration.txt").write_text("10\n")
    assert _newest(tmp_path, "ds/global_step*") == "ds/global_step10"
    assert _newest(tmp_path, "mg/iter_*") == "mg/iter_0000010"
