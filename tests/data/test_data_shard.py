"""Sharding: lists, iterators, odd names, bad files, changed sources, kills, full disks; and never half a data set."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shoal.data
from data_sets import SHOAL, contents, make_folder
from shoal.data.scan import SourceFile, SourceSample, SourceScan
from shoal.data.shard_files import estimate_sharding, finished_shards, prepare_sharding, shard_dataset
from shoal.data.shard_plan import ShardSettings, plan_shards
from shoal.data.verify import describe_dataset, extract_dataset, verify_dataset
from shoal.errors import InputError, ShoalError
from shoal.kernel import files
from waiting import wait_until

SMALL = ShardSettings(shard_mb=0.05, first_mb=0.01)


def write_pixels(root: Path) -> Path:
    (root / "pictures").mkdir(parents=True)
    for number in range(6):
        (root / "pictures" / f"{number}.png").write_bytes(b"%d" % number)
    return root


def test_the_same_source_and_seed_give_the_same_bytes_with_any_number_of_workers(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "src")
    ids = {
        shoal.data.shard_dataset(str(source), str(tmp_path / name), SMALL, workers=workers).manifest.id
        for name, workers in (("a", 1), ("b", 3))
    }
    assert len(ids) == 1
    other = shoal.data.shard_dataset(str(source), str(tmp_path / "c"), SMALL._replace(seed=1)).manifest.id
    assert other not in ids


def test_the_order_is_mixed_over_classes_and_can_be_kept(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "src", 90, classes=3)
    shoal.data.shard_dataset(str(source), str(tmp_path / "mixed"), SMALL)
    shoal.data.shard_dataset(str(source), str(tmp_path / "kept"), SMALL._replace(seed=None))
    mixed = shoal.data.open(str(tmp_path / "mixed"), fields=("cls",))
    kept = shoal.data.open(str(tmp_path / "kept"), fields=("cls",))
    assert [label for (label,) in kept] == sorted(label for (label,) in mixed)
    assert {label for (label,) in mixed.batch(range(12))} == {0, 1, 2}


@given(
    st.lists(st.integers(0, 5_000_000), min_size=1, max_size=80),
    st.floats(0.1, 10),
    st.floats(0, 3),
)
def test_shards_hold_every_sample_once_and_are_about_equal(sizes: list[int], shard_mb: float, first_mb: float) -> None:
    samples = [SourceSample(str(k), (("x", SourceFile(str(k), size, 0)),)) for k, size in enumerate(sizes)]
    plan = plan_shards(
        SourceScan("/", samples, [], [], [], [], []), ShardSettings(shard_mb=shard_mb, first_mb=first_mb)
    )
    sharded = [sample.key for shard in range(plan.shards) for sample in plan.samples(shard)]
    assert sorted(sharded) == sorted(sample.key for sample in samples)
    assert all(plan.samples(shard) for shard in range(plan.shards))
    largest = max(sizes) + 2048
    for shard in range(plan.shards):
        assert sum(sample.size for sample in plan.samples(shard)) <= shard_mb * 1e6 + largest


def test_a_csv_gives_classes_and_fields(tmp_path: Path) -> None:
    write_pixels(tmp_path)
    with (tmp_path / "list.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split", "note"])
        writer.writerows([f"pictures/{k}.png", "cat" if k % 2 else "ant", "train", f"a,b\n{k}"] for k in range(6))
    sharded = shoal.data.shard_dataset(str(tmp_path / "list.csv"), str(tmp_path / "out"))
    assert sharded.manifest.classes == ["ant", "cat"]
    data = shoal.data.open(str(tmp_path / "out"))
    for sample in data:
        number = int(sample["png"])
        assert sample["cls"] == number % 2
        assert json.loads(sample["json"]) == {"split": "train", "note": f"a,b\n{number}"}


def test_jsonl_and_plain_lists_work_and_bad_ones_say_where(tmp_path: Path) -> None:
    write_pixels(tmp_path)
    rows = [json.dumps({"image": f"pictures/{k}.png", "label": k * 10, "box": [k, 2]}) for k in range(6)]
    (tmp_path / "list.jsonl").write_text("\n".join(rows))
    shoal.data.shard_dataset(str(tmp_path / "list.jsonl"), str(tmp_path / "a"))
    assert {s["cls"]: json.loads(s["json"]) for s in shoal.data.open(str(tmp_path / "a"))} == {
        k * 10: {"box": [k, 2]} for k in range(6)
    }
    (tmp_path / "list.txt").write_text("".join(f"pictures/{k}.png\n" for k in range(6)))
    assert shoal.data.shard_dataset(str(tmp_path / "list.txt"), str(tmp_path / "b")).manifest.samples == 6
    (tmp_path / "bad.csv").write_text("name,label\npictures/1.png,1\n")
    with pytest.raises(InputError, match="no column 'path'") as caught:
        shoal.data.shard_dataset(str(tmp_path / "bad.csv"), str(tmp_path / "c"))
    assert caught.value.hint == "--path-column name"
    (tmp_path / "bad.jsonl").write_text('{"path": "x"}\n{oops\n')
    with pytest.raises(InputError, match="cannot be read as jsonl"):
        shoal.data.shard_dataset(str(tmp_path / "bad.jsonl"), str(tmp_path / "c"))
    assert not (tmp_path / "c").exists()


def test_samples_of_several_files_are_grouped_by_stem(tmp_path: Path) -> None:
    for number in range(4):
        for field in ("jpg", "seg.png", "json"):
            (tmp_path / "src").mkdir(exist_ok=True)
            (tmp_path / "src" / f"{number}.{field}").write_bytes(f"{number}{field}".encode())
    sharded = shoal.data.shard_dataset(str(tmp_path / "src"), str(tmp_path / "out"), ShardSettings(group="stem"))
    assert sharded.manifest.samples == 4
    for sample in shoal.data.open(str(tmp_path / "out")):
        key = sample.pop("__key__")
        assert sample == {field: f"{key}{field}".encode() for field in ("jpg", "seg.png", "json")}


def test_an_iterator_becomes_a_data_set(tmp_path: Path) -> None:
    samples = ({"__key__": f"s{k}", "txt": f"héllo {k}", "cls": k % 4, "json": {"k": [k]}} for k in range(50))
    made = shoal.data.shard_samples(
        samples, str(tmp_path / "out"), ShardSettings(shard_mb=0.02, first_mb=0.005), buffer=10
    )
    assert made.samples == 50
    assert len(made.shards) > 1
    found = {sample["__key__"]: sample for sample in shoal.data.open(str(tmp_path / "out"), check=True)}
    assert len(found) == 50
    assert found["s7"] == {"__key__": "s7", "txt": "héllo 7".encode(), "cls": 3, "json": b'{"k": [7]}'}
    assert verify_dataset(str(tmp_path / "out")).problems == []


def test_an_iterator_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, object]]:
        yield {"txt": "one"}
        raise RuntimeError("camera unplugged")

    with pytest.raises(RuntimeError, match="camera"):
        shoal.data.shard_samples(broken(), str(tmp_path / "out"))
    with pytest.raises(InputError, match="two samples have the key 'a'"):
        shoal.data.shard_samples([{"__key__": "a", "x": b""}, {"__key__": "a", "x": b""}], str(tmp_path / "out"))
    with pytest.raises(InputError, match="no sample"):
        shoal.data.shard_samples([], str(tmp_path / "out"))
    assert os.listdir(tmp_path) == []


@settings(max_examples=30)
@given(
    st.lists(
        st.binary(min_size=1, max_size=40).filter(
            lambda n: b"/" not in n and b"\0" not in n and n not in (b".", b"..")
        ),
        min_size=1,
        max_size=8,
        unique=True,
    ),
    st.sampled_from(["tar", "tfrecord"]),
)
@example([b"a.;", b"b.bin"], "tar")
def test_any_name_that_a_disk_allows_survives_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, names: list[bytes], format: str
) -> None:
    folder = tmp_path_factory.mktemp("names")
    (folder / "src").mkdir()
    for number, name in enumerate(names):
        Path(os.fsdecode(os.path.join(os.fsencode(folder / "src"), name))).write_bytes(b"%d" % number)
    sharded = shoal.data.shard_dataset(
        str(folder / "src"), str(folder / "out"), ShardSettings(format=format, include=("*",)), workers=1
    )
    assert sharded.manifest.samples == len(names)
    extract_dataset(str(folder / "out"), str(folder / "back"))
    assert contents(folder / "back") == contents(folder / "src")
    assert len({sample["__key__"] for sample in shoal.data.open(str(folder / "out"))}) == len(names)


def test_names_that_differ_only_in_what_a_key_drops_stay_samples_of_their_own(tmp_path: Path) -> None:
    import webdataset

    (tmp_path / "src").mkdir()
    for name in ("a.jpg", "a.png", "a.1.jpg", "a_1.jpg", "a", "new\nline.jpg", ".hidden", "x" * 200 + ".jpg"):
        (tmp_path / "src" / name).write_text(name)
    sharded = shoal.data.shard_dataset(str(tmp_path / "src"), str(tmp_path / "out"), ShardSettings(include=("*",)))
    assert sharded.manifest.samples == 8
    shard = str(tmp_path / "out" / "shard-000000.tar")
    found = list(webdataset.WebDataset([shard], shardshuffle=False))
    assert len(found) == 8
    assert not any("\n" in sample["__key__"] for sample in found)
    extract_dataset(str(tmp_path / "out"), str(tmp_path / "back"))
    assert contents(tmp_path / "back") == contents(tmp_path / "src")


def test_empty_files_are_kept_and_empty_folders_are_told(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "src", 6)
    (source / "class0" / "nothing.jpg").write_bytes(b"")
    (source / "bare").mkdir()
    sharded = shoal.data.shard_dataset(str(source), str(tmp_path / "out"))
    assert sharded.scan.notes == ["1 empty folder left out"]
    data = shoal.data.open(str(tmp_path / "out"), check=True)
    assert {s["__key__"]: s["jpg"] for s in data}["class0/nothing"] == b""
    extract_dataset(str(tmp_path / "out"), str(tmp_path / "back"))
    assert contents(tmp_path / "back") == contents(source)
    with pytest.raises(InputError, match="nothing to shard"):
        shoal.data.shard_dataset(str(source / "bare"), str(tmp_path / "none"))


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "src", 6)
    (source / "class0" / "up").symlink_to(source)
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "away.jpg").write_bytes(b"far")
    (source / "class1" / "linked.jpg").symlink_to(tmp_path / "far" / "away.jpg")
    sharded = shoal.data.shard_dataset(str(source), str(tmp_path / "out"))
    assert sharded.manifest.samples == 7
    assert any("not followed" in note for note in sharded.scan.notes)


@pytest.mark.parametrize("kind", ["dangling", "circle", "pipe"])
def test_what_cannot_be_read_stops_the_command_or_is_left_out_and_listed(tmp_path: Path, kind: str) -> None:
    source = make_folder(tmp_path / "src", 6)
    bad = source / "class0" / "bad.jpg"
    if kind == "pipe":
        os.mkfifo(bad)
    else:
        bad.symlink_to(bad if kind == "circle" else tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"cannot shard class0/bad\.jpg") as caught:
        shoal.data.shard_dataset(str(source), str(tmp_path / "out"))
    assert "--skip-bad" in str(caught.value.hint)
    assert not (tmp_path / "out").exists()
    sharded = shoal.data.shard_dataset(str(source), str(tmp_path / "out"), ShardSettings(skip_bad=True))
    assert sharded.manifest.samples == 6
    assert [text.split(":")[0] for text in sharded.manifest.left_out] == ["class0/bad.jpg"]


@pytest.mark.parametrize("change", ["vanish", "grow", "unreadable"])
def test_a_file_that_changes_between_the_look_and_the_read_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    from shoal.data import shard_files, shard_workers

    source = make_folder(tmp_path / "src", 12)
    victim = source / "class1" / "img_00004.jpg"
    begin = shard_files._begin_directory

    def meddle(*args: object) -> None:
        begin(*args)  # type: ignore[arg-type]
        if change == "vanish":
            victim.unlink()
        elif change == "grow":
            victim.write_bytes(victim.read_bytes() + b"more")

    monkeypatch.setattr(shard_files, "_begin_directory", meddle)
    if change == "unreadable":  # root may read everything, so the refusal is played here
        plain = shard_workers.read_file

        def refuse(root: str, file: SourceFile) -> bytes:
            if file.path.endswith("img_00004.jpg"):
                raise PermissionError(13, "Permission denied")
            return plain(root, file)

        monkeypatch.setattr(shard_workers, "read_file", refuse)
    words = {"vanish": "vanished", "grow": "changed", "unreadable": "permission denied"}
    with pytest.raises(InputError, match=rf"class1/img_00004\.jpg: .*{words[change]}"):
        shoal.data.shard_dataset(str(source), str(tmp_path / "out"), SMALL)
    assert not (tmp_path / "out").exists()
    if change == "unreadable":
        sharded = shoal.data.shard_dataset(str(source), str(tmp_path / "out"), SMALL._replace(skip_bad=True))
        assert sharded.manifest.samples == 11
        assert sharded.manifest.left_out == ["class1/img_00004.jpg: permission denied"]
        assert describe_dataset(str(tmp_path / "out"))["left_out"] == sharded.manifest.left_out


def test_a_source_that_changed_since_an_unfinished_dataset_is_not_mixed_into_it(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "src", 60)
    _kill_shard_command_in_the_middle(source, tmp_path / "out")
    (source / "class0" / "img_00000.jpg").write_bytes(b"another picture")
    with pytest.raises(InputError, match=r"changed since the sharding in .* began") as caught:
        shoal.data.shard_dataset(str(source), str(tmp_path / "out"), SMALL)
    assert str(caught.value.hint).startswith("rm -r ")
    other = make_folder(tmp_path / "other", 5)
    with pytest.raises(InputError, match="unfinished dataset of"):
        shoal.data.shard_dataset(str(other), str(tmp_path / "out"), SMALL)


def test_sharding_again_does_nothing_and_a_changed_source_needs_overwrite(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "src", 12)
    first = shoal.data.shard_dataset(str(source), str(tmp_path / "out"))
    again = shoal.data.shard_dataset(str(source), str(tmp_path / "out"))
    assert again.existed and again.manifest == first.manifest
    (source / "class0" / "new.jpg").write_bytes(b"new")
    with pytest.raises(InputError, match="before the source changed"):
        shoal.data.shard_dataset(str(source), str(tmp_path / "out"))
    assert shoal.data.open(str(tmp_path / "out")).manifest == first.manifest
    second = shoal.data.shard_dataset(str(source), str(tmp_path / "out"), overwrite=True)
    assert second.manifest.samples == 13
    assert sorted(os.listdir(tmp_path)) == ["out", "src"]


def test_a_folder_that_is_no_data_set_is_never_replaced(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "src", 6)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="is not a data set"):
        shoal.data.shard_dataset(str(source), str(tmp_path / "mine"), overwrite=True)
    with pytest.raises(InputError, match="is inside the source"):
        shoal.data.shard_dataset(str(source), str(source / "out"))
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_a_killed_shard_command_goes_on_where_it_was(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "src", 60)
    kept = _kill_shard_command_in_the_middle(source, tmp_path / "out")
    sharded = shoal.data.shard_dataset(str(source), str(tmp_path / "out"), SMALL)
    assert sharded.reused == kept > 0
    assert sharded.manifest.id == shoal.data.shard_dataset(str(source), str(tmp_path / "fresh"), SMALL).manifest.id
    assert verify_dataset(str(tmp_path / "out")).problems == []
    assert not (tmp_path / "out.sharding").exists()
    assert not [name for name in os.listdir(tmp_path / "out") if ".tmp-" in name]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_is_one_sentence_and_the_command_goes_on_when_there_is_room(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "src", 60, size=20_000)
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=800k", "tmpfs", str(disk)], check=True)
    try:
        argv = [*SHOAL, "data", "shard", str(source), str(disk / "out"), "--shard-size", "0.3"]
        failed = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert failed.returncode == 74
        assert "no space left" in failed.stderr
        assert not (disk / "out").exists()
        _assert_hint_shows_disk(failed.stderr, disk)
        image = [*SHOAL, "data", "shard", str(source), str(disk / "image"), "--format", "squashfs"]
        failed = subprocess.run(image, capture_output=True, text=True, check=False)
        assert failed.returncode == 74 and not (disk / "image").exists(), failed.stderr
        _assert_hint_shows_disk(failed.stderr, disk)
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        done = subprocess.run([*argv, "--json"], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["reused_shards"] > 0
        assert verify_dataset(str(disk / "out")).problems == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_stops_unpacking_and_measuring_with_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "src", 60, size=20_000)
    shoal.data.shard_dataset(str(source), str(tmp_path / "data"))
    disk, room = tmp_path / "disk", tmp_path / "room"
    disk.mkdir()
    room.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=800k", "tmpfs", str(disk)], check=True)
    bench = ["bench", "--files", "30", "--file-size", "100", "--readers", "1"]
    try:
        for words in (
            ["unpack", str(tmp_path / "data"), str(disk / "out")],
            [*bench, "--storage", str(disk), "--scratch", str(room)],
            [*bench, "--storage", str(room), "--scratch", str(disk)],
        ):
            failed = subprocess.run([*SHOAL, "data", *words], capture_output=True, text=True, check=False)
            errors = [line for line in failed.stderr.splitlines() if line.startswith("error: ")]
            assert failed.returncode == 74 and len(errors) == 1 and "no space left" in errors[0].lower(), failed.stderr
            assert os.listdir(disk) == os.listdir(room) == []
            _assert_hint_shows_disk(failed.stderr, disk)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def _assert_hint_shows_disk(said: str, disk: Path) -> None:
    """The hint is a command that, when pasted, shows the disk that is full; shoal's state has nothing to do with it."""
    (hint,) = [line.removeprefix("hint: ") for line in said.splitlines() if line.startswith("hint: ")]
    shown = subprocess.run(hint, shell=True, capture_output=True, text=True, check=True).stdout
    assert str(disk) in shown and "SHOAL_HOME" not in said


def test_a_dry_run_counts_and_writes_nothing(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "src", 60)
    told = estimate_sharding(str(source), SMALL)
    sharded = shoal.data.shard_dataset(str(source), str(tmp_path / "out"), SMALL)
    assert (told.shards, told.samples, told.bytes) == (
        len(sharded.manifest.shards),
        sharded.manifest.samples,
        sharded.manifest.bytes,
    )
    assert told.seconds > 0


def test_two_shard_commands_of_one_source_at_once_make_one_data_set(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "src", 60)
    argv = [*SHOAL, "data", "shard", str(source), str(tmp_path / "out"), "--shard-size", "0.05"]
    both = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [command.communicate()[1] for command in both]
    assert [command.returncode for command in both] == [0, 0], errors
    assert verify_dataset(str(tmp_path / "out")).problems == []
    assert sorted(os.listdir(tmp_path)) == ["out", "src"]


def test_a_shard_command_that_another_one_overtakes_at_its_start_finds_the_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, dest = make_folder(tmp_path / "src", 20), tmp_path / "out"
    plain = files.create_exclusive
    (tmp_path / "out.sharding").mkdir()

    def overtaken(path: str, data: bytes) -> bool:
        monkeypatch.undo()
        assert plain(path, data), "the other command begins"
        is_first = plain(path, data)
        shard_dataset(str(source), str(dest), SMALL)
        return is_first

    monkeypatch.setattr(files, "create_exclusive", overtaken)
    assert shard_dataset(str(source), str(dest), SMALL).existed
    assert verify_dataset(str(dest)).problems == []
    assert sorted(os.listdir(tmp_path)) == ["out", "src"]


_SLOW_SHARDING = """
import sys, time
from shoal.data import shard_files, shard_workers
from shoal.data.shard_plan import ShardSettings

plain = shard_workers.write_one

def slow(plan, folder, number):
    if number >= 3:
        sys.stdout.write("three\\n"); sys.stdout.flush()
        time.sleep(600)
    return plain(plan, folder, number)

shard_workers.write_one = slow
shard_files.shard_dataset(sys.argv[1], sys.argv[2], ShardSettings(shard_mb=0.05, first_mb=0.01), workers=2)
"""


def _kill_shard_command_in_the_middle(source: Path, dest: Path) -> int:
    """Kill -9 a shard command that has finished some shards; return how many, once its children are gone."""
    command = subprocess.Popen([sys.executable, "-c", _SLOW_SHARDING, str(source), str(dest)], stdout=subprocess.PIPE)
    assert command.stdout is not None
    try:
        assert command.stdout.readline().startswith(b"three")
        plan = prepare_sharding(str(source), SMALL)
        folder = str(dest) + ".sharding"
        wait_until(lambda: len(finished_shards(folder, plan)) >= 2, 20, "two shards are finished")
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
        assert children
    finally:
        os.kill(command.pid, signal.SIGKILL)
        command.wait()
        command.stdout.close()
    wait_until(lambda: not any(_alive(child) for child in children), 20, "the command's children died with it")
    assert not dest.exists()
    with pytest.raises(ShoalError):
        shoal.data.open(str(dest))
    return len(finished_shards(folder, plan))


def _alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
