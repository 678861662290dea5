"""What `data shard` takes for a sample and for a class: said in its output, refused where it could be two things."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import shoal.data
from project import Project
from shoal.data.shard_plan import ShardSettings
from shoal.errors import InputError

IMAGES = ["cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/2.png"]


def write(root: Path, paths: list[str]) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    return root


def sharded(root: Path, **options: Any) -> dict[str, str | None]:
    """Original name -> class name of every sample that was sharded."""
    dest = root.with_name(f"{root.name}-sharded-{len(os.listdir(root.parent))}")
    made = shoal.data.shard_dataset(str(root), str(dest), ShardSettings(**options))
    found: dict[str, str | None] = {}
    for sample in shoal.data.open(str(dest)):
        (name,) = (value.decode() for field, value in sample.items() if field not in ("cls", "__key__", "json"))
        found[name] = made.manifest.classes[sample["cls"]] if "cls" in sample else None
    assert len(found) == made.manifest.samples
    return found


def refusal(root: Path, **options: Any) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        shoal.data.shard_dataset(str(root), str(root) + "-out", ShardSettings(**options))
    assert not os.path.exists(str(root) + "-out")
    return caught.value.message, str(caught.value.hint)


def test_one_readme_beside_the_class_folders_does_not_cost_the_labels(tmp_path: Path) -> None:
    root = write(tmp_path / "src", [*IMAGES, "README.md", "cat/.DS_Store", ".git/HEAD", "dog/Thumbs.db", "LICENSE"])
    assert sharded(root) == {path: path.split("/")[0] for path in IMAGES}
    root = write(tmp_path / "raw", ["cat/1.raw", "dog/1.raw", "README.md"])
    assert sharded(root) == {"cat/1.raw": "cat", "dog/1.raw": "dog"}, "kinds that nobody knows are no reason to guess"


def test_the_class_is_the_top_folder(tmp_path: Path) -> None:
    root = write(tmp_path / "src", [*IMAGES, "cat/nested/deep/3.jpg", "dog/nested/3.jpg"])
    assert sharded(root)["cat/nested/deep/3.jpg"] == "cat"
    assert sharded(root, label="parent")["cat/nested/deep/3.jpg"] == "deep"
    assert set(sharded(root, label="none").values()) == {None}


def test_splits_are_not_merged(tmp_path: Path) -> None:
    paths = ["train/cat/1.jpg", "train/dog/1.jpg", "train/emu/1.jpg", "val/cat/9.jpg", "val/dog/9.jpg", "val/fox/9.jpg"]
    root = write(tmp_path / "src", [*paths, "README.md"])
    told, hint = refusal(root)
    assert "the splits train, val" in told and "--split train" in hint and "--split all" in hint
    assert sharded(root, split="val") == {path: path.split("/")[1] for path in paths if path.startswith("val")}
    assert sharded(root, split="all") == {path: path.split("/")[1] for path in paths}
    assert sharded(root, label="folder") == {path: path.split("/")[0] for path in paths}
    skipped = {
        one.why: one.files
        for one in shoal.data.shard_dataset(str(root), str(tmp_path / "t"), ShardSettings(split="val")).scan.skipped
    }
    assert skipped == {"beside the splits": 1, "of other splits": 3}
    numbers = {}
    for split in ("train", "val"):
        made = shoal.data.shard_dataset(str(root), str(tmp_path / split), ShardSettings(split=split))
        assert made.manifest.classes == ["cat", "dog", "emu", "fox"], "a class has one number in all splits"
        numbers[split] = {s["__key__"].split("/")[0]: s["cls"] for s in shoal.data.open(str(tmp_path / split))}
    assert numbers == {"train": {"cat": 0, "dog": 1, "emu": 2}, "val": {"cat": 0, "dog": 1, "fox": 3}}
    assert "no folder 'test'" in refusal(root, split="test")[0]
    only = write(tmp_path / "only", ["train/cat/1.jpg", "train/dog/1.jpg"])
    assert sharded(only) == {"train/cat/1.jpg": "cat", "train/dog/1.jpg": "dog"}
    vehicles = write(tmp_path / "vehicles", ["train/1.jpg", "car/1.jpg", "bus/1.jpg"])
    told, hint = refusal(vehicles)
    assert "look like splits (train)" in told and "--label folder" in hint
    assert len(set(sharded(vehicles, label="folder").values())) == 3


@pytest.mark.parametrize(
    ("paths", "said", "flags"),
    [
        ([*IMAGES, "stray.jpg"], "1 files beside its folders, such as stray.jpg", ["--label folder", "--label none"]),
        (["imgs/cat/1.jpg", "imgs/dog/1.jpg"], "has one folder, imgs, with 2 folders in it", ["--label none"]),
        (["fog/1/cat/a.jpg", "rain/1/cat/a.jpg"], "two or more folders deep", ["--label folder", "--label parent"]),
        (
            ["cat/1.jpg", "cat/1.json", "dog/2.jpg"],
            "have one stem",
            ["--group stem", "--include '*.jpg'"],
        ),
    ],
)
def test_a_folder_that_can_be_read_in_two_ways_is_refused_with_the_flags_that_settle_it(
    tmp_path: Path, paths: list[str], said: str, flags: list[str]
) -> None:
    root = write(tmp_path / "src", paths)
    told, hint = refusal(root)
    assert said in told and all(flag in hint for flag in flags)
    for flag in flags:
        option, value = shlex.split(flag)
        name, dest = option.removeprefix("--"), tmp_path / flag[2:].replace("*", "")
        asked: dict[str, Any] = {name: (value,) if name == "include" else value}
        made = shoal.data.shard_dataset(str(root), str(dest), ShardSettings(**asked))
        assert made.manifest.samples > 0, f"{flag} settles it"


def test_folders_without_classes_have_none_and_it_is_said(tmp_path: Path) -> None:
    flat = write(tmp_path / "flat", ["1.jpg", "2.jpg", "notes.txt"])
    assert sharded(flat) == {"1.jpg": None, "2.jpg": None}
    one = write(tmp_path / "one", ["images/1.jpg", "images/2.jpg"])
    assert sharded(one) == {"images/1.jpg": None, "images/2.jpg": None}
    assert "no folders to take classes from" in refusal(write(tmp_path / "bare", ["1.jpg"]), label="folder")[0]


def test_include_and_exclude_take_names_and_paths(tmp_path: Path) -> None:
    root = write(tmp_path / "src", [*IMAGES, "cat/mask.txt", "dog/old/3.jpg"])
    assert set(sharded(root, include=("*.jpg",))) == {"cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/old/3.jpg"}
    assert set(sharded(root, exclude=("dog/old/*", "*.png"))) == {"cat/1.jpg", "cat/2.jpg", "dog/1.jpg"}
    assert "cat/mask.txt" in sharded(root, include=("*",))
    assert "6 files are not included by --include" in refusal(root, include=("*.gif",))[0]
    assert "--include has no effect" in refusal(root, format="squashfs", include=("*.jpg",))[0]


def test_samples_of_several_files_lose_only_stems_without_a_picture(tmp_path: Path) -> None:
    root = write(tmp_path / "src", ["a/1.jpg", "a/1.json", "b/2.png", "b/2.json", "README.md", "b/notes.txt"])
    made = shoal.data.shard_dataset(str(root), str(tmp_path / "out"), ShardSettings(group="stem"))
    assert made.manifest.samples == 2 and made.manifest.classes == ["a", "b"]
    assert [(one.why, one.files) for one in made.scan.skipped] == [("not images", 2)]


def test_a_list_with_splits_is_not_merged_either(tmp_path: Path) -> None:
    write(tmp_path, [f"{k}.png" for k in range(6)])
    rows = [f"{k}.png,{'ab'[k % 2]},{'train' if k < 4 else 'val'}" for k in range(6)]
    (tmp_path / "list.csv").write_text("path,label,split\n" + "\n".join(rows))
    told, hint = refusal(tmp_path / "list.csv")
    assert "the splits train, val in column 'split'" in told and "--split train" in hint
    assert set(sharded(tmp_path / "list.csv", split="val")) == {"4.png", "5.png"}
    assert len(sharded(tmp_path / "list.csv", split="all")) == 6
    assert set(sharded(tmp_path / "list.csv", split="all", exclude=("0.*",))) == {f"{k}.png" for k in range(1, 6)}


@pytest.mark.slow
def test_the_output_tells_classes_counts_fields_what_was_skipped_and_guessed(tmp_path: Path) -> None:
    project = Project(tmp_path)
    root = write(tmp_path / "src", [*IMAGES, "cat/3.JPG", "README.md", "cat/.DS_Store", "dog/a.txt"])
    for words in (["--dry-run"], [], []):
        out = project.shoal("data", "shard", root, tmp_path / "out", *words).out
        assert "classes: 2: cat 3, dog 2" in out
        assert "fields: cls 5, jpg 4, png 1" in out and "'jpg;png'" in out
        assert "skipped: 1 file, hidden or of the system (cat/.DS_Store)" in out
        assert "skipped: 2 files, not images (README.md, dog/a.txt)" in out
    document = project.shoal("data", "shard", root, tmp_path / "out", "--json").json
    assert document["classes"] == {"cat": 3, "dog": 2} and document["fields"] == {"cls": 5, "jpg": 4, "png": 1}
    skipped = [(one["why"], one["files"]) for one in document["skipped"]]
    assert skipped == [("hidden or of the system", 1), ("not images", 2)]
    flat = project.shoal("data", "shard", write(tmp_path / "flat", ["1.jpg"]), tmp_path / "flat-out").out
    assert "classes: none, samples have no label" in flat and "guessed: no folders" in flat
    kept = json.loads((tmp_path / "out" / "manifest.json").read_text())["source"]
    assert [one["files"] for one in kept["skipped"]] == [1, 2]


def test_a_field_may_have_several_names(tmp_path: Path) -> None:
    root = write(tmp_path / "src", [f"c{k % 3}/{k}.{('jpg', 'jpeg', 'png')[k % 2 + k % 3 // 2]}" for k in range(60)])
    for format in ("tar", "tfrecord"):
        settings = ShardSettings(shard_mb=0.01, first_mb=0.005, format=format)
        shoal.data.shard_dataset(str(root), str(tmp_path / format), settings)
        data = shoal.data.open(str(tmp_path / format), fields=("jpg;jpeg;png", "cls"))
        expected = Counter(path.relative_to(root).as_posix() for path in root.rglob("*.*"))
        assert Counter(image.decode() for image, _ in data.stream(seed=1, epoch=1)) == expected
        assert Counter(image.decode() for image, _ in data.batch(range(60))) == expected
        assert all(image.decode().startswith(f"c{label}/") for image, label in data)
        some = [image for (image,) in shoal.data.open(str(tmp_path / format), fields=("png",)).stream(window=1)]
        assert len(some) == 60 and 0 < some.count(None) < 60, "a shard without any png is no error"
        with pytest.raises(InputError, match="no sample has the field 'gif;bmp'"):
            list(shoal.data.open(str(tmp_path / format), fields=("gif;bmp",)))


@pytest.mark.slow
def test_webdataset_reads_mixed_fields_too(tmp_path: Path) -> None:
    import webdataset

    root = write(tmp_path / "src", IMAGES)
    shoal.data.shard_dataset(str(root), str(tmp_path / "out"))
    shards = [str(path) for path in (tmp_path / "out").glob("*.tar")]
    found = webdataset.WebDataset(shards, shardshuffle=False).to_tuple("jpg;png", "cls")
    assert {image.decode(): int(label) for image, label in found} == {path: path.startswith("dog") for path in IMAGES}
