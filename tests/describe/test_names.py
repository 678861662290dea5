"""One name everywhere: parsed from the path, safe for Slurm, file systems and trackers, never shared by two runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal import names
from shoal.errors import InputError
from shoal.kernel import submission

ROOT = Path("/project")
_REAL = st.text(max_size=60)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("001_example/000_pretrain1_0.sh", ("001_example", "000_pretrain1_0", 0, "pretrain1", 0)),
        ("001_example/010_train.sh", ("001_example", "010_train", 10, "train", None)),
        ("001_a/000_two_words_12.sh", ("001_a", "000_two_words_12", 0, "two_words", 12)),
        ("001_a/000_1_2.sh", ("001_a", "000_1_2", 0, "1", 2)),
        ("001_a/./../002_b/000_x_0.sh", ("002_b", "000_x_0", 0, "x", 0)),
    ],
)
def test_the_path_gives_experiment_order_step_and_seed(path: str, expected: tuple[object, ...]) -> None:
    assert names.parse_script_path(ROOT / "experiments" / path, ROOT)[:5] == expected


@given(_REAL)
def test_a_slug_is_safe_whatever_it_is_made_of(real: str) -> None:
    try:
        slug = names.make_slug(real)
    except InputError:
        return
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", slug)
    assert names.make_slug(slug) == slug
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", real):
        assert slug == real


@given(_REAL, _REAL)
def test_two_names_that_had_to_be_changed_stay_two(first: str, second: str) -> None:
    try:
        slugs = names.make_slug(first), names.make_slug(second)
    except InputError:
        return
    assume(first != second and slugs[0] != first and slugs[1] != second)
    assert slugs[0] != slugs[1]


@given(st.from_regex(r"\A[0-9]{3}_[a-z]{1,10}\Z"), st.from_regex(r"\A[0-9]{3}_[a-z]{1,10}_[0-9]\Z"))
def test_the_token_is_found_at_the_end_of_a_job_name(experiment: str, stem: str) -> None:
    token = submission.new_token()
    name = submission.job_name(f"{experiment}/{stem}", token)
    assert names.token_of_job(name) == token and len(name) < 255
    assert names.token_of_job(f"{experiment}.{stem}") is None


def test_tokens_differ() -> None:
    assert len({submission.new_token() for _ in range(1000)}) == 1000


def test_a_tracker_id_differs_by_project_name_and_revision_and_only_by_those() -> None:
    ids = {
        names.tracker_id(project, name, revision)
        for project in ("p", "q")
        for name in ("001_a/000_x_0", "001_a/000_x_1")
        for revision in (1, 2)
    }
    assert len(ids) == 8 and names.tracker_id("p", "001_a/000_x_0", 1) in ids
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,128}", one) for one in ids)


@given(st.integers(0, 10**9), st.sampled_from(["000_train", "000_train_0", "000_train_12"]))
def test_a_stem_under_another_seed_parses_back(seed: int, stem: str) -> None:
    parsed = names.parse_script_path(ROOT / f"experiments/001_a/{names.stem_with_seed(stem, seed)}.sh", ROOT)
    assert (parsed.step, parsed.seed) == ("train", seed)
