"""Files that others wrote, changed: an answer or a clear refusal, in time, and never another exception."""

from __future__ import annotations

import json
import struct
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import changed_bytes, changed_text, fuzz_settings, limited_cpu
from shoal.batch import decode_text, parse_shell
from shoal.data import formats
from shoal.data.external_shards import build_index
from shoal.data.manifest import load_manifest, open_index
from shoal.describe import load_project
from shoal.describe.document import Document
from shoal.describe.sweep_file import parse_sweep
from shoal.doctor.script import read_batch_script
from shoal.errors import ShoalError
from shoal.kernel import files, metric_files, records
from shoal.kernel.causes import find_cause
from shoal.kernel.progress_lines import named_values, newest_count, parse_progress, printed_totals
from shoal.observe.cache_file import _path, read_cache
from shoal.observe.settled_runs import _KeptViews

RECORD = json.dumps(
    {"schema": 1, "token": "a", "t": 1.5, "runs": ["a/b"], "asked": {"nodes": 1}, "exit_code": 0}
).encode()
TOML = """cluster = "a"
[steps.train]
command = ["python", "train.py"]
gpus = 2
time = "1h"
[clusters.a]
partition = "main"
account = 'lab'
[notify]
mail = "a@b"
"""
SWEEP = """step = "train"
seeds = [0, 1]
[grid]
lr = [0.1, "1e-3"]
width = "8..64:*2"
[derived]
n = "{lr * 2}"
[early_stopping]
metric = "loss"
"""
LOG = (
    "step 20/100: loss 3.00 epoch 2\n 33%|### | 10/30 [00:05<00:10, 1.9it/s]\n"
    'Traceback (most recent call last):\n  File "a", line 1\nValueError: x\n'
)
STATE = b'{"log_history": [{"step": 1, "loss": 2}]}'
JSONL = b'{"step": 1, "loss": 0.5}\n{"step": 2, "loss": NaN, "deep": {"a": [1, {"b": 2}]}}\n'
SCRIPT = (
    "#!/bin/bash\n#SBATCH --gres=gpu:4 -N2\ncat <<EOF\n$x\nEOF\n"
    'srun torchrun --nproc_per_node=4 a.py "$@" | tee log &\nwait\n'
)


def _tar() -> bytes:
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in (("a/0.cls", b"7"), ("a/0.jpg", b"x" * 700), ("b" * 120 + ".txt", b"y")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, BytesIO(data))
    return made.getvalue()


def _tfrecord() -> bytes:
    example, _ = formats.encode_example([("image", b"abc"), ("cls", 3)])
    return struct.pack("<QI", len(example), 0) + example + b"\0" * 4


def _event_file() -> bytes:
    value = b"\x0a\x04loss\x15\x00\x00\x80\x3f"
    summary = b"\x0a" + bytes([len(value)]) + value
    event = b"\x09" + struct.pack("<d", 1.0) + b"\x10\x05\x2a" + bytes([len(summary)]) + summary
    return struct.pack("<QI", len(event), 0) + event + b"\0" * 4


WANDB = b":W&B\xe1\xbe\x00" + b"\0\0\0\0" + struct.pack("<HB", 12, 1) + b"\x12\x0a\x0a\x08\x0a\x01a\x12\x03" + b"0.5"

BYTES_READERS: dict[str, tuple[Callable[[bytes], Any], tuple[bytes, ...], tuple[type[Exception], ...]]] = {
    "record": (
        lambda data: [records.decode_record(files.from_json(data, "x"), kind) for kind in
                      (records.Submission, records.ClaimRecord, records.Start, records.End, records.Outcome)],
        (RECORD,), (ValueError,)),
    "metrics.jsonl": (lambda data: list(metric_files.jsonl_rows(data)), (JSONL,), ()),
    "metrics.csv": (lambda data: list(metric_files.csv_rows(data)), (b"step,loss\n1,0.5\n2,nan\n", b'a,"b\n'), ()),
    "trainer_state": (lambda data: list(metric_files.trainer_state_rows(data)), (STATE,), ()),
    "TensorBoard": (lambda data: list(metric_files.tensorboard_points(data)), (_event_file(),), ()),
    "W&B": (lambda data: (list(metric_files.wandb_rows(data)), metric_files.wandb_last_step(data)), (WANDB,), ()),
    "protobuf": (lambda data: list(metric_files.protobuf_fields(data)), (_event_file()[12:],), ()),
    "example": (formats.find_features, (formats.encode_example([("image", b"abc"), ("cls", 3)])[0],), (ValueError,)),
    "tar": (lambda data: list(formats.tar_members(BytesIO(data), "x")), (_tar(),), (ShoalError,)),
    "tfrecord": (lambda data: list(formats.read_records(BytesIO(data), "x", None)), (_tfrecord(),), (ShoalError,)),
    "batch script": (lambda data: read_batch_script(decode_text(data), "x"), (SCRIPT.encode(),), ()),
}  # fmt: skip

TEXT_READERS: dict[str, tuple[Callable[[str], Any], tuple[str, ...], tuple[type[Exception], ...]]] = {
    "sweep": (lambda text: parse_sweep(Document("x.toml", text)), (SWEEP,), (ShoalError,)),
    "progress": (lambda text: (parse_progress(text), printed_totals(text.splitlines()), named_values(text, ["loss"]),
                               newest_count(text.splitlines(), printed_totals([]))), (LOG,), ()),
    "causes": (lambda text: find_cause(text.splitlines(), 1), (LOG,), ()),
    "object in a log": (metric_files.parse_object, ("{'loss': 0.5, 'a': [1, None]}", '{"loss": 1}'), ()),
    "shell": (parse_shell, (SCRIPT,), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", BYTES_READERS)
@fuzz_settings
@given(data=st.data())
def test_no_bytes_break_a_reader(name: str, data: st.DataObject) -> None:
    reader, samples, refusals = BYTES_READERS[name]
    raw = data.draw(changed_bytes(*samples))
    with limited_cpu():
        _accept(reader, raw, refusals)


@pytest.mark.parametrize("name", TEXT_READERS)
@fuzz_settings
@given(data=st.data())
def test_no_text_breaks_a_reader(name: str, data: st.DataObject) -> None:
    reader, samples, refusals = TEXT_READERS[name]
    text = data.draw(changed_text(*samples))
    with limited_cpu():
        _accept(reader, text, refusals)


@fuzz_settings
@given(
    raw=st.one_of(changed_bytes(TOML.encode()), changed_text(TOML).map(lambda t: t.encode("utf-8", "surrogatepass")))
)
def test_no_settings_file_does_more_than_be_read_or_refused(
    raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("p")
    (root / "shoal.toml").write_bytes(raw)
    with limited_cpu():
        _accept(lambda path: load_project(path, {"HOME": str(root)}), root, (ShoalError,))


@fuzz_settings
@given(raw=changed_bytes(msgspec.msgpack.encode({"runs": {}})))
def test_no_cache_file_is_more_than_forgotten(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = str(tmp_path_factory.mktemp("c"))
    path = Path(_path(home, "k", "e"))
    path.parent.mkdir(parents=True)
    path.write_bytes(raw)
    with limited_cpu():
        read_cache(home, "k", "e", _KeptViews)


@pytest.mark.parametrize("suffix", [".tar", ".tfrecord"])
@fuzz_settings
@given(data=st.data())
def test_a_damaged_shard_is_indexed_or_refused(
    suffix: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("s")
    (folder / f"x{suffix}").write_bytes(data.draw(changed_bytes(_tar() if suffix == ".tar" else _tfrecord())))
    with limited_cpu():
        _accept(build_index, str(folder / f"x{suffix}"), (ShoalError,))


@fuzz_settings
@given(
    manifest=changed_text('{"version": 1, "shards": [], "fields": [], "classes": []}'),
    index=changed_bytes(b"SHOALIX1" + b"\0" * 20),
)
def test_a_damaged_manifest_or_index_is_refused(
    manifest: str, index: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("m")
    (folder / "manifest.json").write_bytes(manifest.encode("utf-8", "surrogatepass"))
    (folder / "x.index").write_bytes(index)
    with limited_cpu():
        _accept(load_manifest, str(folder), (ShoalError,))
        _accept(open_index, str(folder / "x.index"), (ShoalError,))


DEEP = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def test_what_was_found_is_refused_or_passed_over(tmp_path: Path) -> None:
    """Inputs that once ended in RecursionError, TypeError, OverflowError or MemoryError."""
    with pytest.raises(ValueError, match="damaged"):
        files.from_json(DEEP, "x")
    assert list(metric_files.trainer_state_rows(DEEP)) == list(metric_files.trainer_state_rows(b"{}"))
    schemas: list[Any] = [[], None, {}, "x", float("inf")]
    for schema in schemas:
        with pytest.raises(ValueError, match="no schema"):
            records.decode_record({"schema": schema}, records.Outcome)
    for length in (1 << 40, (1 << 63) - 1, 1 << 63):
        (tmp_path / "x.tfrecord").write_bytes(struct.pack("<QI", length, 0) + b"\0" * 40)
        with (tmp_path / "x.tfrecord").open("rb") as file, pytest.raises(ShoalError, match="cut off"):
            list(formats.read_records(file, "x", None))


def _accept(reader: Callable[[Any], Any], value: Any, refusals: tuple[type[Exception], ...]) -> None:
    try:
        reader(value)
    except refusals:
        pass
