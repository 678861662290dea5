"""Files of runs that come from a cluster: whole, checked, and nowhere else than where they were asked for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import cancel_all
from project import assert_clear_error
from published import complaints
from remote_project import CutOnce, RemoteProject
from shoal.errors import ShoalError
from shoal.remote import parse_listing
from shoal.sandbox import Sandbox
from ssh_server import SshServer

LARGE = 6 << 20
#: Does not get smaller by the compression of ssh.
MAKE = f"""\
import os
out = os.environ["SHOAL_OUTPUT_DIR"]
os.mkdir(os.path.join(out, "sub dir"))
for name, data in (("a.ckpt", os.urandom({LARGE})), ("empty", b""), ("sub dir/b's.txt", b"text"), ("tool.sh", b"#!")):
    with open(os.path.join(out, name), "wb") as file:
        file.write(data)
os.chmod(os.path.join(out, "tool.sh"), 0o755)
os.symlink("/etc/passwd", os.path.join(out, "last"))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, cluster: Sandbox) -> Iterator[RemoteProject]:
    folder = tmp_path_factory.mktemp("pull")
    server = SshServer(folder / "ssh", cluster.env())
    made = RemoteProject(folder, server, cluster)
    made.write("make.py", MAKE)
    made.shoal("run", "--on", "galvani", "--name", "files", "--", sys.executable, "-S", "make.py")
    yield made
    server.close()
    cancel_all(cluster)


@pytest.fixture(autouse=True)
def whole_connection(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "project" in request.fixturenames:
        proxy = request.getfixturevalue("project").server.proxy
        proxy.watch = lambda way, count: None
        proxy.refuses = False


def source(project: RemoteProject) -> Path:
    return next(project.there.glob("outputs/make/files/*/*/a.ckpt")).parent


def pull(project: RemoteProject, *words: object) -> tuple[object, ...]:
    return ("pull", source(project).parent.name, *words, "--on", "galvani")


@pytest.mark.slurm
def test_the_outputs_of_a_run_come_whole_and_links_do_not(project: RemoteProject) -> None:
    there = source(project)
    here = project.root / there.relative_to(project.there)
    planned = project.shoal(*pull(project, "--dry-run", "--json")).json
    assert complaints("pull", planned) == [] and planned["left_out"] == 1 and not here.exists()
    assert {one["path"] for one in planned["files"]} >= {"a.ckpt", "empty", "sub dir/b's.txt", "tool.sh"}
    done = project.shoal(*pull(project))
    assert "left out: 1 link" in done.out and str(here) in done.out
    for name in ("a.ckpt", "empty", "sub dir/b's.txt", "tool.sh"):
        assert (here / name).read_bytes() == (there / name).read_bytes()
    assert not os.access(here / "tool.sh", os.X_OK) and not (here / "last").is_symlink()
    assert not (here / ".shoal-pull").exists()
    again = project.shoal(*pull(project, "--json")).json
    assert {one["state"] for one in again["files"]} == {"same"}


@pytest.mark.slurm
def test_files_that_are_here_and_different_stay_unless_told(project: RemoteProject, tmp_path: Path) -> None:
    (tmp_path / "sub dir").mkdir()
    (tmp_path / "sub dir" / "b's.txt").write_text("mine")  # of the same size
    refused = project.shoal(*pull(project, "*.txt", "empty", "--to", tmp_path), code=None)
    assert_clear_error(refused, 2, "b's.txt", "--overwrite")
    assert (tmp_path / "sub dir" / "b's.txt").read_text() == "mine" and not (tmp_path / "empty").exists()
    done = project.shoal(*pull(project, "*.txt", "--overwrite", "--to", tmp_path, "--json")).json
    assert [(one["path"], one["state"]) for one in done["files"]] == [("sub dir/b's.txt", "replaced")]
    assert complaints("pull", done) == [] and (tmp_path / "sub dir" / "b's.txt").read_text() == "text"
    assert not (tmp_path / "a.ckpt").exists()
    assert_clear_error(project.shoal(*pull(project, "*.nope"), code=None), 2, "*.nope", "--dry-run")
    assert_clear_error(project.shoal("pull", "nope", "--on", "galvani", code=None), 2, "nope")
    assert_clear_error(project.shoal("pull", "nope", code=None), 2, "--on PROFILE")


@pytest.mark.slurm
@pytest.mark.parametrize("stays_down", [False, True])
def test_a_pull_that_is_cut_continues_with_the_byte_that_it_has(
    project: RemoteProject, tmp_path: Path, stays_down: bool
) -> None:
    part = tmp_path / ".shoal-pull"

    def has_half() -> bool:
        return any(path.stat().st_size > LARGE // 3 for path in part.glob("*"))

    cut = CutOnce(project, lambda way: has_half(), stays_down=stays_down)
    done = project.shoal(*pull(project, "a.ckpt", "--to", tmp_path), code=None, timeout_s=100)
    assert cut.happened
    if stays_down:
        assert_clear_error(done, 5, "what has come is kept", "same command again")
        assert has_half() and not (tmp_path / "a.ckpt").exists()
        counts: list[int] = []
        project.server.proxy.refuses = False
        project.server.proxy.watch = lambda way, count: counts.append(count) if way == "down" else None
        done = project.shoal(*pull(project, "a.ckpt", "--to", tmp_path))
        assert max(counts) < LARGE * 3 // 4
    else:
        assert "trying again" in done.err
    assert done.code == 0, done.err
    assert (tmp_path / "a.ckpt").read_bytes() == (source(project) / "a.ckpt").read_bytes() and not part.exists()


@pytest.mark.slurm
@pytest.mark.parametrize("grows", [False, True])
def test_a_file_that_is_written_meanwhile_is_never_kept_torn(
    project: RemoteProject, tmp_path: Path, grows: bool
) -> None:
    file = source(project) / "live.log"
    first = os.urandom(LARGE)
    file.write_bytes(first)

    def write_once(way: str, count: int) -> None:
        if way == "down" and count > LARGE // 4 and file.stat().st_size == LARGE:
            file.write_bytes(first + b"more" if grows else os.urandom(LARGE + 1))

    project.server.proxy.watch = write_once
    done = project.shoal(*pull(project, "live.log", "--to", tmp_path), code=None)
    file.unlink()
    if grows:
        assert done.code == 0 and (tmp_path / "live.log").read_bytes() == first, done.err
    else:
        assert_clear_error(done, 1, "live.log", "run the same command again")
        assert not (tmp_path / "live.log").exists()


@pytest.mark.slurm
def test_no_file_is_written_through_a_link(project: RemoteProject, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "sub dir").symlink_to(tmp_path / "outside")
    (target / "empty").symlink_to(tmp_path / "outside" / "new")
    for name in ("*.txt", "empty"):
        refused = project.shoal(*pull(project, name, "--overwrite", "--to", target), code=None)
        assert_clear_error(refused, 2, "is a link", "--to DIR")
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.slurm
@pytest.mark.parametrize("name", ["../../../../../../escaped", "/escaped", "a/../../escaped"])
def test_a_hostile_cluster_cannot_name_a_file_elsewhere(project: RemoteProject, tmp_path: Path, name: str) -> None:
    """shoal on the cluster is changed, so that it lists a file by another name."""
    [listing] = project.server.home.glob(".local/share/shoal/remote/*/lib/*/site-packages/shoal/cli/pull.py")
    before = listing.read_text()
    wanted = name if name != "/escaped" else str(tmp_path / "escaped")
    record = {"run": "files/x", "output_dir": str(source(project)), "place": "x", "files": [[wanted, 4]], "left_out": 0}
    changed = before.replace("api.output_files(args.run)._asdict()", repr(record))
    assert changed != before
    listing.write_text(changed)
    try:
        done = project.shoal(*pull(project, "--to", tmp_path / "target"), code=None)
    finally:
        listing.write_text(before)
    assert_clear_error(done, 1, "escaped", "nothing was pulled")
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/x", "a//b", "a/./b", "a/..", "x\n", "\x1b[2J", ".shoal-pull/x"]
)
@pytest.mark.parametrize("key", ["place", "files"])
def test_names_that_lead_out_of_the_target_are_refused(name: str, key: str) -> None:
    record = {"run": "a/b", "output_dir": "/x", "place": "train/a/b", "files": [["fine", 1]], "left_out": 0}
    assert parse_listing(json.dumps(record).encode(), "galvani").files[0].path == "fine"
    record[key] = name if key == "place" else [["fine", 1], [name, 1]]
    with pytest.raises(ShoalError) as caught:
        parse_listing(json.dumps(record).encode(), "galvani")
    assert "nothing was pulled" in caught.value.message and name.isprintable() <= (name in caught.value.message)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"[" * 100_000, b'{"run": 1}', b"\xff"])
def test_a_list_that_is_none_is_an_error(data: bytes) -> None:
    with pytest.raises(ShoalError, match="sent no list"):
        parse_listing(data, "galvani")
