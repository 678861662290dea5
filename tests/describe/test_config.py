"""shoal.toml: what is understood, and how every mistake names its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.describe.document import Document
from shoal.describe.locate import find_root, home_of, user_config_path
from shoal.describe.project import Project, bare_project, find_project, project_or_bare
from shoal.describe.steps import check_step_name
from shoal.errors import InputError
from shoal.model import Request


def project(tmp_path: Path, text: str | bytes, user: str = "") -> Project:
    (tmp_path / "shoal.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    if user:
        (tmp_path / "config/shoal").mkdir(parents=True)
        (tmp_path / "config/shoal/config.toml").write_text(user)
    return find_project(tmp_path, {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)})


def refusal(tmp_path: Path, text: str | bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        project(tmp_path, text)
    return caught.value


def test_a_step_has_its_words_split_as_a_shell_would_and_a_list_is_taken_as_it_is(tmp_path: Path) -> None:
    found = project(
        tmp_path,
        """
        [steps.train]
        command = "python -m 'my project' --name \\"a b\\""
        output = "training"
        checkpoint = "model_*.pth"
        request = { gpus = 4, cpus = 32, time = "3d", memory = "64G" }
        launch = "torchrun"
        requeue = false
        env = { OMP_NUM_THREADS = 4 }
        [steps.evaluate]
        command = ["python", "eval.py", "$HOME", ""]
        """,
    )
    train = found.step("train")
    assert train.command == ("python", "-m", "my project", "--name", "a b")
    assert (train.output, train.checkpoint) == ("training", "model_*.pth")
    assert (train.launch, train.requeue) == ("torchrun", False)
    assert train.request == Request(gpus=4, cpus=32, time="3-00:00:00", memory="64G")
    assert train.env == {"OMP_NUM_THREADS": "4"}
    assert train.origin == "shoal.toml:2"
    evaluate = found.step("evaluate")
    assert evaluate.command == ("python", "eval.py", "$HOME", "")
    assert (evaluate.output, evaluate.launch, evaluate.requeue) == ("evaluate", "process", True)


def test_the_project_is_found_from_a_folder_below(tmp_path: Path) -> None:
    project(tmp_path, "")
    below = tmp_path / "experiments" / "001_a"
    below.mkdir(parents=True)
    assert find_root(below) == str(tmp_path)


def test_no_shoal_toml_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        find_project(tmp_path, {})
    assert "shoal init" in (caught.value.hint or "")
    assert project_or_bare(tmp_path, {"HOME": str(tmp_path)}).toml is None


def test_state_lives_in_the_project_unless_shoal_home_moves_it(tmp_path: Path) -> None:
    assert home_of(tmp_path, {}) == str(tmp_path / ".shoal")
    assert home_of(tmp_path, {"SHOAL_HOME": ""}) == str(tmp_path / ".shoal")
    assert home_of(tmp_path, {"SHOAL_HOME": "/elsewhere"}) == "/elsewhere"
    assert home_of(tmp_path, {"SHOAL_HOME": "state/x/../y"}) == str(tmp_path / "state" / "y")


def test_the_user_config_follows_xdg_and_ignores_a_relative_path() -> None:
    assert user_config_path({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}) == "/x/shoal/config.toml"
    assert user_config_path({"XDG_CONFIG_HOME": "x", "HOME": "/h"}) == "/h/.config/shoal/config.toml"


def test_finding_the_project_imports_nothing_heavy() -> None:
    code = "import sys, shoal.describe.locate; print([m for m in ('msgspec', 'tomllib', 'json') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert done.stdout.strip() == "[]", done.stderr


def test_an_unknown_step_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no step 'trian'; it has train"):
        project(tmp_path, '[steps.train]\ncommand = "x"\n').step("trian")
    with pytest.raises(InputError, match="declares no steps"):
        bare_project(tmp_path, {}).step("train")


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("[steps.train]\ncommand = 'x'\ncheckpont = ''\n", "shoal.toml:3", ["checkpont'; did you mean 'checkpoint'"]),
        ("[step.train]\ncommand = 'x'\n", "shoal.toml:1", ["did you mean 'steps'"]),
        ("a = 1\n[steps.train\n", "shoal.toml:2", ["not TOML"]),
        ("[steps.train]\ncommand = 3\n", "shoal.toml:2", ["string or a list"]),
        ("[steps.train]\n", "shoal.toml:1", ["missing key 'steps.train.command'"]),
        ("[steps.train]\ncommand = ''\n", "shoal.toml:2", ["steps.train.command = '': expected at least one word"]),
        ('[steps.train]\ncommand = "python \'x"\n', "shoal.toml:2", ["no closing quotation"]),
        (
            "[steps.train]\ncommand = ['a', 1]\n",
            "shoal.toml:2",
            ["invalid steps.train.command.1 = 1: expected a string"],
        ),
        (
            "[steps.train]\ncommand = 'x'\nrequeue = 'yes'\n",
            "shoal.toml:3",
            ["invalid steps.train.requeue = 'yes': expected true or false"],
        ),
        (
            "[steps.train]\ncommand = 'x'\nlaunch = 'mpi'\n",
            "shoal.toml:3",
            ["steps.train.launch = 'mpi': expected one of accelerate, deepspeed"],
        ),
        ("[steps.train]\ncommand = 'x'\noutput = '../x'\n", "shoal.toml:3", ["folder under outputs/"]),
        ("[steps.train]\ncommand = 'x'\ncheckpoint = '/m'\n", "shoal.toml:3", ["leaves the run's output folder"]),
        (
            "[steps.train]\ncommand = 'x'\n[steps.train.request]\ngpus = true\n",
            "shoal.toml:4",
            ["request.gpus = true: expected a whole number"],
        ),
        ("[steps.train]\ncommand = 'x'\n[steps.train.request]\n\ntime = '24'\n", "shoal.toml:5", ["not a duration"]),
        ("[steps.train]\ncommand = 'x'\nrequest = {memory = '64'}\n", "shoal.toml:3", ["amount of memory"]),
        (
            "[steps.train]\ncommand = 'x'\nrequest = {nodes = 0}\n",
            "shoal.toml:3",
            ["request.nodes = 0: expected a whole number of at least 1"],
        ),
        ("[steps.train]\ncommand = 'x'\nrequest = {gpu = 1}\n", "shoal.toml:3", ["did you mean 'gpus'"]),
        ("[steps.train]\ncommand = 'x'\nrequest = {gpu_type = 'a 1'}\n", "shoal.toml:3", ["GPU type"]),
        ("[steps.train]\ncommand = 'x'\nenv = {'A-B' = '1'}\n", "shoal.toml:3", ["environment variable"]),
        ("[steps.train]\ncommand = 'x'\nenv = {A = true}\n", "shoal.toml:3", ["a string or a number"]),
        ("[steps.train]\ncommand = 'x'\nenv.WANDB_API_KEY = 'k'\n", "shoal.toml:3", ["looks like a secret"]),
        ("steps = 3\n", "shoal.toml:1", ["invalid steps = 3: expected a table"]),
        ("[steps]\ntrain = 'x'\n", "shoal.toml:2", ["invalid steps.train = 'x': expected a table"]),
        ("[clusters.a]\nqos = 'x'\n[clusters.a.qos.high]\ncpus_per_node = 3\n", "shoal.toml:3", ["not TOML"]),
        ("[clusters.a]\nnetwork = 'carrier-pigeon'\n", "shoal.toml:2", ["aws-efa, ethernet, infiniband"]),
        ("[clusters.a]\ngres = 'gpus'\n", "shoal.toml:2", ["clusters.a.gres = 'gpus': expected a GPU request"]),
        ("[clusters.a]\nlogs = '~/x'\n", "shoal.toml:2", ["does not expand"]),
        ('[clusters.a]\naccount = "a\\nb"\n', "shoal.toml:2", ["expected a string of one printable line"]),
        ("[clusters.a]\npartition = []\n", "shoal.toml:2", ["invalid clusters.a.partition = []: expected a string"]),
        ("[clusters.a]\nmatch = {name = 'x'}\n", "shoal.toml:2", ["unknown key 'clusters.a.match.name'"]),
        ("[clusters.a.qos.high]\nsetup = 'x'\n", "shoal.toml:2", ["unknown key"]),
        ("[clusters.a.qos]\ndefault = 1\n", "shoal.toml:2", ["invalid clusters.a.qos.default = 1"]),
        (
            "[clusters.a.gpu_types]\nx = 'y'\nz = ''\n",
            "shoal.toml:3",
            ["clusters.a.gpu_types.z = '': expected a string that is not"],
        ),
        ("[steps.a]\ncommand = 'x'\nsmoke.steps = 0\n", "shoal.toml:3", ["invalid steps.a.smoke.steps = 0"]),
        ("[status]\ncolumns = 3\n", "shoal.toml:2", ["invalid status.columns = 3: expected a string"]),
        ("shared = 'yes'\n", "shoal.toml:1", ["invalid shared = 'yes': expected true or false"]),
        ('"a` - at `$.b" = 1\n', "shoal.toml:1", ["unknown key 'a` - at `$.b'"]),
        ("[clusters.'-x']\n", "shoal.toml:1", ["begins with a dash"]),
        ("d = 2026-02-30\n", "shoal.toml:1", ["not TOML"]),
        ("d = " + "9" * 5000, "shoal.toml", ["not TOML"]),
    ],
)
def test_a_mistake_names_its_line_and_what_is_allowed(tmp_path: Path, text: str, place: str, words: list[str]) -> None:
    error = refusal(tmp_path, text)
    assert error.place == place, error.message
    assert error.exit_code == 2
    for word in words:
        assert word in error.message


@pytest.mark.parametrize("name", ["test", "eval", "cd", "source", "if", "resume", "python", "a-b", "1x", "", "ä"])
def test_a_step_name_that_bash_or_shoal_needs_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        check_step_name(name)


def test_the_list_of_bash_words_is_complete_for_this_bash() -> None:
    done = subprocess.run(["bash", "-c", "compgen -bk"], capture_output=True, text=True, check=True)
    for name in done.stdout.split():
        if name.isidentifier():
            with pytest.raises(InputError):
                check_step_name(name)


def test_files_that_are_no_settings_are_refused_in_one_sentence(tmp_path: Path) -> None:
    assert "not UTF-8" in refusal(tmp_path, b"a = 1\nb = '\xff'\n").message
    assert refusal(tmp_path, b"a = 1\nb = '\xff'\n").place == "shoal.toml:2"
    assert "not UTF-8" in refusal(tmp_path, "[steps]".encode("utf-16")).message
    assert "too large" in refusal(tmp_path, b"#" * 300_000).message
    assert "nested too deeply" in refusal(tmp_path, "a = " + "[\n" * 20_000).message
    assert "too long" in refusal(tmp_path, "a" + ".a" * 100_000 + " = 1").message
    assert refusal(tmp_path, b"a = \0").place == "shoal.toml:1"


def test_a_folder_or_a_broken_link_in_place_of_shoal_toml_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").mkdir()
    with pytest.raises(InputError, match="folder, not a file"):
        find_project(tmp_path, {})
    (tmp_path / "shoal.toml").rmdir()
    (tmp_path / "shoal.toml").symlink_to("nowhere")
    with pytest.raises(InputError, match="cannot be read"):
        find_project(tmp_path, {})


def test_an_empty_file_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    assert project(tmp_path, "").steps == {}
    found = project(tmp_path, b"\xef\xbb\xbf[steps.train]\r\ncommand = 'x'\r\n\r\n[steps.b]\r\ncommand = 'y'\r\n")
    assert found.step("b").origin == "shoal.toml:4"


def test_hostile_keys_do_not_take_long(tmp_path: Path) -> None:
    refusal(tmp_path, "a" + ".a" * 300 + " = 1\n" + "\n".join(f"b{i}.x = {i}" for i in range(5000)))


LOCATED = '''# comment = 1
title = "a # not a comment"

[a]      # table
x = """
y = 1
"""
"quoted key" = 'z'
list = [
    1,   # one
    { deep = 2 },
]
inline = { p = "}", q = { r = [1, 2] } }
[a.b."c.d"]
e.f = 1979-05-27
[[many]]
n = 1
[[many]]
n = 2
'''


def test_every_key_is_found_on_its_line() -> None:
    document = Document("f", LOCATED)
    expected = {
        ("title",): 2, ("a",): 4, ("a", "x"): 5, ("a", "quoted key"): 8, ("a", "list"): 9, ("a", "list", 0): 10,
        ("a", "list", 1, "deep"): 11, ("a", "inline", "q", "r", 1): 13, ("a", "b", "c.d"): 14,
        ("a", "b", "c.d", "e", "f"): 15, ("many", 0, "n"): 17, ("many", 1, "n"): 19,
    }  # fmt: skip
    assert {key: document.place(key) for key in expected} == {key: f"f:{line}" for key, line in expected.items()}
    assert document.place(("a", "nothing", "here")) == "f:4"
    assert document.place(("nothing",)) == "f"


KEYS = st.sampled_from(["a", "b-c", '"d e"', "'f.g'", '"h\\"i"'])
VALUES = st.recursive(
    st.sampled_from(["1", "true", '"x # y"', "'''a\nb'''", '"""q"q\\"""" """', "1979-05-27", "-3.5e2"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ",\n ".join(items) + "]"),
        st.lists(inner.filter(lambda text: "\n" not in text), max_size=2).map(
            lambda items: "{ " + ", ".join(f"k{i} = {item}" for i, item in enumerate(items)) + " }"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(st.lists(st.tuples(KEYS, VALUES), max_size=8))
def test_the_scanner_agrees_with_tomllib_on_where_top_level_keys_are(pairs: list[tuple[str, str]]) -> None:
    text, lines = "", {}
    for number, (key, value) in enumerate(pairs):
        lines[number] = text.count("\n") + 1
        text += f"{key}.k{number} = {value} # end\n\n"
    try:
        values: dict[str, Any] = tomli.loads(text)
    except tomli.TOMLDecodeError:
        return
    document = Document("f", text)
    for outer, inner in values.items():
        for name in inner:
            assert document.place((outer, name)) == f"f:{lines[int(name[1:])]}"
