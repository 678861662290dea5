"""Shards on disk: tar and TFRecord that others can read, indexes, checksums, permutations."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import zlib
from pathlib import Path

import isal.isal_zlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal.data
from data_sets import contents, make_folder
from shoal.data import formats, manifest, shard_writer
from shoal.data.manifest import IndexBuilder, IndexedSample, SampleMember, ShardIndex, is_intact
from shoal.data.shard_plan import Permutation, ShardSettings
from shoal.data.verify import describe_dataset, extract_dataset, verify_dataset
from shoal.errors import InputError, ShoalError
from shoal.job import file_copy

SMALL = ShardSettings(shard_mb=0.05, first_mb=0.01)


@given(st.lists(st.binary(max_size=200), max_size=12))
def test_checksums_of_pieces_give_the_checksum_of_the_whole_in_both_implementations(pieces: list[bytes]) -> None:
    told = [(zlib.crc32(piece), len(piece)) for piece in pieces]
    assert shard_writer.combine_crcs(told) == file_copy.combine_crc32(told) == zlib.crc32(b"".join(pieces))


@given(st.binary(max_size=70_000), st.integers(0, 2**32 - 1))
def test_the_fast_checksum_is_the_one_that_every_python_has(data: bytes, before: int) -> None:
    assert file_copy.crc32 is isal.isal_zlib.crc32
    assert file_copy.crc32(data, before) == file_copy.crc32(memoryview(data), before) == zlib.crc32(data, before)


def test_without_the_package_for_it_the_checksum_is_zlib_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    assert file_copy._choose_crc32() is zlib.crc32


@given(
    st.binary(min_size=1, max_size=300).filter(lambda n: b"\0" not in n and not n.endswith(b"/")),
    st.binary(max_size=2000),
)
def test_tar_headers_are_read_by_the_standard_library_with_any_name(name: bytes, data: bytes) -> None:
    text = formats.tar_header(name, len(data), 1_700_000_000) + data + formats.tar_padding(len(data)) + formats.TAR_END
    with tarfile.open(fileobj=io.BytesIO(text), errors="surrogateescape") as archive:
        member = archive.getmembers()[0]
        found = archive.extractfile(member)
        assert found is not None and found.read() == data
        assert member.mtime == 1_700_000_000
        if not name.startswith(b"/"):
            assert os.fsencode(member.name).strip(b"/") == name.strip(b"/")
    assert [(m.name, m.size) for m in formats.tar_members(io.BytesIO(text), "x")] == [(name, len(data))]


@given(
    st.lists(
        st.tuples(st.text(max_size=20), st.one_of(st.binary(max_size=300), st.integers(-(2**63), 2**63 - 1))),
        min_size=1,
    )
)
def test_examples_tell_where_their_values_lie(values: list[tuple[str, bytes | int]]) -> None:
    data, offsets = formats.encode_example(values)
    found = formats.find_features(data)
    assert [feature.offset for feature in found] == offsets
    for (name, value), feature in zip(values, found, strict=True):
        raw = data[feature.offset : feature.offset + feature.size]
        assert feature.name == name
        assert (formats.int64_list(raw) == [value]) if isinstance(value, int) else raw == value


@given(st.binary(max_size=200))
def test_bytes_that_are_no_example_are_refused_or_parsed_but_never_crash(data: bytes) -> None:
    try:
        for feature in formats.find_features(data):
            assert 0 <= feature.offset <= feature.offset + feature.size <= len(data)
    except ValueError:
        pass


@given(st.integers(1, 3000), st.integers(0, 2**64), st.integers(0, 1000))
def test_a_permutation_visits_everything_once(length: int, seed: int, epoch: int) -> None:
    found = Permutation(length, seed, epoch).at(np.arange(length))
    assert sorted(found.tolist()) == list(range(length))


def test_the_order_of_a_seed_never_changes_because_resumed_trainings_rely_on_it() -> None:
    assert Permutation(10, 0, 0).at(np.arange(10)).tolist() == Permutation(10, 0, 0).at(np.arange(10)).tolist()
    assert Permutation(12, 1, 2).at(np.arange(12)).tolist() == GOLDEN_ORDER
    assert Permutation(12, 1, 3).at(np.arange(12)).tolist() != GOLDEN_ORDER


GOLDEN_ORDER = [9, 1, 3, 7, 8, 11, 5, 6, 10, 0, 4, 2]


@given(
    st.lists(
        st.tuples(st.binary(max_size=30), st.lists(st.sampled_from(["jpg", "json", "cls"]), min_size=1, max_size=3)),
        max_size=20,
    )
)
def test_an_index_gives_back_what_was_put_in(samples: list[tuple[bytes, list[str]]]) -> None:
    builder, put = IndexBuilder(), []
    for number, (key, fields) in enumerate(samples):
        members = tuple(SampleMember(field, number * 100 + k, k, k * 7, key + b"/") for k, field in enumerate(fields))
        put.append(IndexedSample(key, members, number - 3))
        builder.add(put[-1])
    data = builder.finish({"name": "x", "size": 1})
    index = ShardIndex(data, "x")
    assert [index.sample(number) for number in range(len(index))] == put
    assert is_intact(data)
    assert not is_intact(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])


@pytest.mark.parametrize("format", ["tar", "tfrecord"])
def test_what_was_sharded_comes_back_byte_for_byte(tmp_path: Path, format: str) -> None:
    source = make_folder(tmp_path / "src")
    sharded = shoal.data.shard_dataset(str(source), str(tmp_path / "out"), SMALL._replace(format=format))
    assert sharded.manifest.samples == 60
    assert sharded.manifest.classes == ["class0", "class1", "class2"]
    assert len(sharded.manifest.shards) > 2
    assert sharded.manifest.shards[0].size < sharded.manifest.shards[1].size
    assert verify_dataset(str(tmp_path / "out")).problems == []
    extract_dataset(str(tmp_path / "out"), str(tmp_path / "back"))
    assert contents(tmp_path / "back") == contents(source)


def test_a_squashfs_image_is_sharded_verified_and_unpacked(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "src")
    shoal.data.shard_dataset(str(source), str(tmp_path / "out"), SMALL._replace(format="squashfs"))
    assert verify_dataset(str(tmp_path / "out")).problems == []
    extract_dataset(str(tmp_path / "out"), str(tmp_path / "back"))
    assert contents(tmp_path / "back") == contents(source)
    with pytest.raises(InputError, match="squashfs image"):
        shoal.data.open(str(tmp_path / "out"))


@pytest.mark.slow
def test_gnu_tar_and_webdataset_read_our_shards(tmp_path: Path) -> None:
    import webdataset

    source = make_folder(tmp_path / "src")
    sharded = shoal.data.shard_dataset(str(source), str(tmp_path / "out"), SMALL)
    paths = [str(tmp_path / "out" / shard.name) for shard in sharded.manifest.shards]
    names = []
    for path in paths:
        with tarfile.open(path) as archive:
            names += archive.getnames()
    assert len(names) == 2 * 60
    found = {sample["__key__"]: sample for sample in webdataset.WebDataset(paths, shardshuffle=False)}
    assert len(found) == 60
    for key, sample in found.items():
        assert sample["jpg"] == (source / f"{key}.jpg").read_bytes()
        assert sharded.manifest.classes[int(sample["cls"])] == key.split("/")[0]


def test_the_tfrecord_package_reads_our_shards(tmp_path: Path) -> None:
    from tfrecord.reader import tfrecord_loader

    source = make_folder(tmp_path / "src")
    sharded = shoal.data.shard_dataset(str(source), str(tmp_path / "out"), SMALL._replace(format="tfrecord"))
    found = {}
    for shard in sharded.manifest.shards:
        path = str(tmp_path / "out" / shard.name)
        for record in tfrecord_loader(path, None, {"jpg": "byte", "cls": "int", "__key__": "byte"}):
            found[bytes(record["__key__"]).decode()] = (bytes(record["jpg"]), int(record["cls"][0]))
    assert len(found) == 60
    for key, (image, label) in found.items():
        assert image == (source / f"{key}.jpg").read_bytes()
        assert sharded.manifest.classes[label] == key.split("/")[0]


def test_we_read_and_verify_shards_of_webdataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import webdataset

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with webdataset.TarWriter(str(tmp_path / "train-0000.tar")) as sink:
        for number in range(20):
            sink.write({"__key__": f"a/{number:04d}", "jpg": b"x" * number, "cls": number % 5, "json": {"n": number}})
    data = shoal.data.open(str(tmp_path / "train-0000.tar"))
    assert len(data) == 20
    for number, sample in enumerate(data):
        assert sample == {
            "__key__": f"a/{number:04d}",
            "jpg": b"x" * number,
            "cls": number % 5,
            "json": json.dumps({"n": number}).encode(),
        }
    assert verify_dataset(str(tmp_path)).problems == []
    assert describe_dataset(str(tmp_path))["samples"] == 20
    assert len(list((tmp_path / "cache" / "shoal" / "index").iterdir())) == 1
    assert sorted(os.listdir(tmp_path)) == ["cache", "train-0000.tar"]


def test_we_read_tfrecords_of_others_with_numbers_and_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tfrecord.writer import TFRecordWriter

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    writer = TFRecordWriter(str(tmp_path / "a.tfrecord"))
    for number in range(10):
        writer.write(
            {"image": (b"i" * number, "byte"), "label": (number - 5, "int"), "box": ([0.5, 1.5 * number], "float")}
        )
    writer.close()
    data = shoal.data.open(str(tmp_path / "a.tfrecord"), fields=("image", "label", "box"))
    assert [data[number] for number in range(10)] == [
        (b"i" * number, [number - 5], [0.5, 1.5 * number]) for number in range(10)
    ]


def test_an_index_is_built_again_when_a_shard_made_elsewhere_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(count: int) -> None:
        with tarfile.open(tmp_path / "x.tar", "w") as archive:
            for number in range(count):
                member = tarfile.TarInfo(f"{number}.txt")
                member.size = 3
                archive.addfile(member, io.BytesIO(b"abc"))

    write(4)
    assert len(shoal.data.open(str(tmp_path / "x.tar"))) == 4
    write(400)
    assert len(shoal.data.open(str(tmp_path / "x.tar"))) == 400


def test_a_manifest_of_a_newer_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "src", 5)
    shoal.data.shard_dataset(str(source), str(tmp_path / "out"))
    path = tmp_path / "out" / manifest.MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99, "shards": "in another way"}))
    with pytest.raises(InputError, match=r"newer shoal.*version 99") as caught:
        shoal.data.open(str(tmp_path / "out"))
    assert "upgrade" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 1, "shards": 3}'])
def test_a_damaged_manifest_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / manifest.MANIFEST_NAME).write_text(text)
    with pytest.raises(ShoalError, match="damaged"):
        manifest.load_manifest(str(tmp_path))


def test_a_manifest_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    make_folder(tmp_path / "src", 5)
    shoal.data.shard_dataset(str(tmp_path / "src"), str(tmp_path / "out"))
    path = tmp_path / "out" / manifest.MANIFEST_NAME
    path.write_text(path.read_text().replace("shard-000000.tar", "../../etc/passwd"))
    with pytest.raises(ShoalError, match="not the name of a shard"):
        manifest.load_manifest(str(tmp_path / "out"))


@settings(max_examples=25)
@given(st.data())
def test_any_cut_or_changed_byte_of_a_shard_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    make_folder(folder / "src", 12, size=400)
    format = data.draw(st.sampled_from(["tar", "tfrecord"]))
    shoal.data.shard_dataset(str(folder / "src"), str(folder / "out"), ShardSettings(format=format))
    shard = next(path for path in (folder / "out").iterdir() if path.suffix == f".{format}")
    original = shard.read_bytes()
    place = data.draw(st.integers(0, len(original) - 1))
    if data.draw(st.booleans()):
        shard.write_bytes(original[:place])
    else:
        shard.write_bytes(
            original[:place] + bytes([original[place] ^ data.draw(st.integers(1, 255))]) + original[place + 1 :]
        )
    assert [problem.shard for problem in verify_dataset(str(folder / "out")).problems] == [shard.name]


def test_verify_names_the_samples_that_were_hit(tmp_path: Path) -> None:
    make_folder(tmp_path / "src", 12, size=400)
    shoal.data.shard_dataset(str(tmp_path / "src"), str(tmp_path / "out"))
    data = shoal.data.open(str(tmp_path / "out"), check=True)
    member = data.shards.index(0).sample(5).members[0]
    shard = tmp_path / "out" / "shard-000000.tar"
    bytes_ = bytearray(shard.read_bytes())
    bytes_[member.offset] ^= 1
    shard.write_bytes(bytes_)
    (problem,) = verify_dataset(str(tmp_path / "out")).problems
    assert f"{data.key(5)}.jpg altered" in problem.message
    with pytest.raises(ShoalError, match="wrong checksum"):
        data[5]
    with pytest.raises(ShoalError, match="damaged"):
        extract_dataset(str(tmp_path / "out"), str(tmp_path / "back"))
    assert not (tmp_path / "back").exists()


def test_a_truncated_shard_made_elsewhere_is_found_by_its_structure(tmp_path: Path) -> None:
    make_folder(tmp_path / "src", 12, size=400)
    for format in ("tar", "tfrecord"):
        shoal.data.shard_dataset(str(tmp_path / "src"), str(tmp_path / format), ShardSettings(format=format))
        name = f"shard-000000.{format}"
        whole = (tmp_path / format / name).read_bytes()
        (tmp_path / f"cut.{format}").write_bytes(whole[: len(whole) * 2 // 3])
        (problem,) = verify_dataset(str(tmp_path / f"cut.{format}")).problems
        assert "cut off" in problem.message
        with pytest.raises(ShoalError, match="cut off"):
            shoal.data.open(str(tmp_path / f"cut.{format}"))[0]
