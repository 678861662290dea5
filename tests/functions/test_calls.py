"""Functions and arguments as descriptions: digests that do not depend on the process, names, and what is refused."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import pytest

import shoal
from shoal.functions.call_runs import _form_of, expand_calls
from shoal.functions.calls import bind_arguments, find_function, refuse_large_globals
from shoal.functions.digests import digest_code, digest_value
from shoal.functions.watcher import RunKey, _has_changed
from shoal.kernel import layout

VALUES = "[{'b': 1, 'a': {'x', 'yy', 'zzz'}}, (1.5, None), b'bytes', frozenset({'p', 'q'})]"


def load(path: Path, source: str) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("values", [VALUES, pytest.param("__import__('torch').arange(9.0)", marks=pytest.mark.slow)])
def test_the_digest_of_a_value_is_the_same_in_every_process(values: str) -> None:
    code = f"from shoal.functions.digests import digest_value; print(digest_value({values}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {digest_value(eval(values))}


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (True, 1), ("1", 1), ([1, 2], (1, 2)), ({1: 2}, {2: 1}), ("a", b"a"), ([[]], [])]
)
def test_values_that_differ_have_other_digests(one: Any, other: Any) -> None:
    assert digest_value(one) != digest_value(other)


def test_cycles_and_arrays_have_digests() -> None:
    import numpy

    cycle: list[Any] = [1]
    cycle.append(cycle)
    assert digest_value(cycle) == digest_value(cycle)
    assert digest_value(re.compile("a")) == digest_value(re.compile("a")) != digest_value(re.compile("b"))
    assert digest_value(numpy.arange(5)) == digest_value(numpy.arange(5)) != digest_value(numpy.arange(6))


def test_comments_and_moves_do_not_change_the_digest_of_code_but_what_it_calls_does(tmp_path: Path) -> None:
    first = load(tmp_path / "code_a.py", "def help(x):\n    return x\ndef f(x):\n    return help(x)\n")
    before = digest_code(first.f, str(tmp_path))[0]
    moved = load(
        tmp_path / "code_a.py", "\n# moved\n\ndef help(x):\n    return x\ndef f(x):\n\n    return help(x)  # no\n"
    )
    assert digest_code(moved.f, str(tmp_path))[0] == before
    other = load(tmp_path / "code_a.py", "def help(x):\n    return x + 1\ndef f(x):\n    return help(x)\n")
    assert digest_code(other.f, str(tmp_path))[0] != before


PACKAGE = {
    "pkg_r/__init__.py": "from .deep import deep\nfrom .stars import *\n",
    "pkg_r/sub.py": "def helper():\n    return 1\ndef other():\n    return 1\n",
    "pkg_r/local.py": "from . import circle\ndef late():\n    return circle.back()\n",
    "pkg_r/circle.py": "from .local import late\nfrom pkg_r import *\ndef back():\n    return late, 1\n",
    "pkg_r/deep.py": "import dataclasses\nRATE = 0.1\nTABLE = {}\nTABLE['a'] = 1\nclass Base:\n    def run(self):\n"
    "        return 1\n@dataclasses.dataclass\nclass Config(Base):\n    rate: float = RATE\n"
    "def deep():\n    return Config().run(), TABLE\n",
    "pkg_r/stars.py": "def star():\n    return 1\n",
    "space_r/inner.py": "def inner():\n    return 1\n",
    "main_r.py": "import json, pkg_r.sub\ndef unused():\n    return 1\n"
    "def f(x, helper=1):\n    from pkg_r.local import late\n    import space_r.inner as near, space_r.inner\n"
    "    return json.dumps(pkg_r.sub.helper()), late(), pkg_r.deep(), pkg_r.star(), near.inner(), helper\n"
    "def helper():\n    return 1\n",
}


def test_code_is_followed_through_imports_in_functions_attribute_paths_and_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is imported once, as in a kernel: what counts is the file, which a job would import."""
    for name, source in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    function = importlib.import_module("main_r").f
    before = digest_code(function, str(tmp_path))
    assert "from pkg_r.local import late" in before[1] and "pkg_r.local" not in sys.modules
    assert digest_code(function, str(tmp_path / "elsewhere"))[0] != before[0], "files of other projects are not read"
    now = time.time()
    for name, old, is_reached in (
        ("pkg_r/sub.py", "def helper():\n    return 1", True),
        ("pkg_r/sub.py", "def other():\n    return 1", False),
        ("pkg_r/circle.py", "late, 1", True),
        ("pkg_r/deep.py", "        return 1", True),
        ("pkg_r/deep.py", "0.1", True),
        ("pkg_r/deep.py", "['a'] = 1", True),
        ("pkg_r/stars.py", "1", True),
        ("space_r/inner.py", "1", True),
        ("main_r.py", "def unused():\n    return 1", False),
        ("main_r.py", "def helper():\n    return 1", False),
    ):
        path = tmp_path / name
        source = path.read_text()
        assert source.count(old) == 1
        for text in (source.replace(old, old.replace("1", "2")), source):
            path.write_text(text)
            now += 1
            os.utime(path, (now, now))  # file systems have coarse clocks
            changed = digest_code(function, str(tmp_path))[0] != before[0]
            assert changed == (is_reached and text != source), (name, old)


SIDES = {
    "used_s.py": "def compute():\n    return 1\ndef setup():\n    return 0\n",
    "net_s.py": "class Net:\n    def f(self):\n        return 1\n",
    "fast_s.py": "def step():\n    return 1\n",
    "slow_s.py": "def step():\n    return 1\n",
    "main_s.py": "import used_s\nfrom net_s import Net\nused_s.setup()\nNet.tag = 'try'\n"
    "try:\n    from fast_s import step\nexcept ImportError:\n    from slow_s import step\n"
    "IS_FAST = 1\nif IS_FAST:\n    STEPS = 10\nelse:\n    STEPS = 1000\n"
    "def f():\n    return used_s.compute(), Net().f(), step(), STEPS\n",
}


def test_a_name_is_followed_in_every_way_in_which_a_module_may_bind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import whose name is changed afterwards, two imports of one name, and the condition around an assignment."""
    for name, source in SIDES.items():
        (tmp_path / name).write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    function = importlib.import_module("main_s").f
    before, now = digest_code(function, str(tmp_path))[0], time.time()
    for name, old in (
        ("used_s.py", "return 1"),
        ("net_s.py", "return 1"),
        ("fast_s.py", "return 1"),
        ("slow_s.py", "return 1"),
        ("main_s.py", "IS_FAST = 1"),
    ):
        path = tmp_path / name
        source = path.read_text()
        for text in (source.replace(old, old.replace("1", "0")), source):
            path.write_text(text)
            now += 1
            os.utime(path, (now, now))
            assert (digest_code(function, str(tmp_path))[0] != before) == (text != source), (name, old)


def test_a_constant_that_comes_from_the_environment_counts_as_code(tmp_path: Path) -> None:
    """No file changes between the two; what else a module has at run time does not count."""
    source = "import os, time\nLR = os.environ.get('LR_S', '1')\nBEGAN = time.time()\ndef f():\n    return LR\n"
    digests = []
    for rate in ("1", "2", "1"):
        os.environ["LR_S"] = rate
        digests.append(digest_code(load(tmp_path / "environ_s.py", source).f, str(tmp_path))[0])
    del os.environ["LR_S"]
    assert digests[0] == digests[2] != digests[1]


def test_a_long_chain_of_functions_has_a_digest(tmp_path: Path) -> None:
    chain = "".join(f"def f{n}():\n    return f{n + 1}()\n" for n in range(3000))
    first = load(tmp_path / "chain_r.py", f"{chain}def f3000():\n    return 1\n")
    before = digest_code(first.f0, str(tmp_path))[0]
    second = load(tmp_path / "chain_r.py", f"{chain}def f3000():\n    return 22\n")
    assert digest_code(second.f0, str(tmp_path))[0] != before


def names_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[dict[str, Any], int | None]:
    bound = bind_arguments(find_function(function, "/", "f"), args, kwargs)
    return dict(bound.shown), bound.seed


def example(lr: float, depth: int = 4, *, seed: int = 0, data: Any = None) -> None: ...


def test_defaults_are_left_out_and_the_parameter_seed_is_the_seed() -> None:
    assert names_of(example, 0.1) == ({"lr": 0.1}, 0)
    assert names_of(example, 0.1, 4, seed=3) == ({"lr": 0.1}, 3)
    assert names_of(example, lr=0.1, depth=8) == ({"lr": 0.1, "depth": 8}, 0)
    shown, _ = names_of(example, 0.1, data=[1, 2])
    assert shown["data"] == f"-{digest_value([1, 2])[:8]}"
    bound = bind_arguments(find_function(example, "/", None), [0.1], {})
    assert bound.defaults == {"depth": 4}, "tables show them, names do not"


def add_to(n: int) -> Callable[[int], int]:
    def add(x: int) -> int:
        return x + n

    return add


def holds(value: Any) -> Callable[[], Any]:
    return lambda: value


def timed(function: Callable[[int], str]) -> Callable[[int], str]:
    def wrapper(x: int) -> str:
        return function(x)

    return wrapper


@timed
def trains(x: int) -> str:
    return f"train {x}"


@timed
def evaluates(x: int) -> str:
    return f"evaluate {x}"


class Base:
    @classmethod
    def who(cls) -> str:
        return cls.__name__


class Derived(Base):
    pass


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (add_to(1), add_to(2)),
        (trains, evaluates),
        (functools.partial(example, 1.0), functools.partial(example, 2.0)),
        (functools.partial(example, lr=1.0), functools.partial(example, lr=2.0)),
        # pickle refuses these, cloudpickle does not
        (holds(MappingProxyType({"lr": 1})), holds(MappingProxyType({"lr": 2}))),
        (holds({1: 0}.keys()), holds({2: 0}.keys())),
    ],
)
def test_what_is_bound_to_a_function_is_part_of_its_digest(one: Any, other: Any) -> None:
    assert digest_code(one, "/") != digest_code(other, "/") and digest_value([one]) != digest_value([other])
    assert digest_code(add_to(1), "/") == digest_code(add_to(1), "/")


def makes(lr: float, also: Any = None, *, computed: Any = 1) -> Callable[..., Any]:
    def train(x: int, more: Any = computed, wd: float = 0.5, seed: int = 0) -> Any:
        return lr, also, x, more, wd, seed

    return train


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "shown"),
    [
        (makes(0.1), (1,), {}, {"x": 1, "lr": 0.1, "also": "-", "more": 1}),
        (makes(0.1), (1,), {"more": 2, "seed": 3}, {"x": 1, "lr": 0.1, "also": "-", "more": 2}),
        (makes(0.2, [1]), (1,), {}, {"x": 1, "lr": 0.2, "also": "-", "more": 1}),
        (functools.partial(example, 1.0), (), {}, {"lr": 1.0}),
        (functools.partial(example, lr=1.0), (), {"lr": 2.0}, {"lr": 2.0}),
        (functools.partial(example, lr=1.0), (), {"lr": 1.0}, {"lr": 1.0}),
        (lambda x=7: x, (), {}, {"x": 7}),
    ],
)
def test_what_a_nameless_function_holds_is_part_of_its_runs_as_arguments_are(
    function: Any, args: Any, kwargs: Any, shown: Any
) -> None:
    """Defaults that are written down in the function are its code."""
    found = bind_arguments(find_function(function, "/", "f"), args, kwargs).shown
    assert {name: value if value != found.get("also") else "-" for name, value in found.items()} == shown


def test_held_values_tell_functions_of_one_name_apart() -> None:
    held = [makes(1, value) for value in (None, [1], [2], trains, evaluates, {"f": trains}, makes(1), makes(2))]
    shown = [bind_arguments(find_function(one, "/", None), [1], {}).shown["also"] for one in held]
    assert len(set(shown)) == len(shown)
    with pytest.raises(shoal.InputError, match=r"cannot tell runs of train apart: it holds 'also' \(lock\)"):
        find_function(makes(1, threading.Lock()), "/", None)
    holds_itself: list[Any] = []
    holds_itself.append(makes(1, holds_itself))
    assert find_function(holds_itself[0], "/", None).captured


def test_bound_builtins_and_methods_of_subclasses_are_told_apart() -> None:
    assert digest_value({1: "a"}.get) != digest_value({1: "b"}.get)
    assert find_function(Derived.who, "/", None).qualname == "Derived.who"

    def calls_itself(x: int) -> int:
        return calls_itself(x - 1) if x else 0

    assert digest_code(calls_itself, "/")[0]


def test_calls_of_one_map_may_pass_their_arguments_in_other_ways(tmp_path: Path) -> None:
    def function(x: int, *rest: int, seed: int | None = None) -> None: ...

    source = find_function(function, str(tmp_path), None)
    bound = [bind_arguments(source, args, named) for args, named in [((1,), {}), ((1, 2), {}), ((1,), {"seed": 5})]]
    assert [_form_of(one) for one in bound] == [
        ((), None, False, ()),
        (("x",), "rest", False, ()),
        ((), None, True, ()),
    ]


def takes_any(first: int, /, *rest: int, **named: Any) -> None: ...


def test_a_grid_a_list_and_seeds_become_calls_in_order() -> None:
    grid = expand_calls({"a": [1, 2], "b": ["x", "y"]}, None)
    assert [one.kwargs for one in grid] == [{"a": a, "b": b} for a in (1, 2) for b in ("x", "y")]
    points = expand_calls([{"a": 1}, 7], range(2))
    assert [(one.args, dict(one.kwargs)) for one in points] == [
        ((), {"a": 1, "seed": 0}),
        ((), {"a": 1, "seed": 1}),
        ((7,), {"seed": 0}),
        ((7,), {"seed": 1}),
    ]


class Thing:
    def work(self, x: int) -> int:
        return x

    def __call__(self) -> int:
        return 1


def test_methods_and_callable_objects_have_names_and_carry_their_object() -> None:
    thing = Thing()
    method = find_function(thing.work, "/", None)
    assert (method.label, method.how, method.owner) == ("Thing_work", "reference", thing)
    assert find_function(thing, "/", None).label == "Thing"
    assert bind_arguments(method, [3], {}).objects == {"self": thing}


BIG = bytes(3 << 20)


def reads_a_large_closure() -> Callable[[], int]:
    data = bytes(50_000_000)
    return lambda: len(data)


def reads_a_large_global() -> int:
    return len(BIG)


@pytest.mark.parametrize(
    ("do", "words"),
    [
        (lambda: find_function(lambda x: x, "/", None), "a lambda has no name"),
        (lambda: shoal.submit("train", lr=1), "'train' is not a function"),  # type: ignore[arg-type]
        (lambda: find_function(functools.partial(example, 1), "/", None), "a partial has no name"),
        (lambda: bind_arguments(find_function(example, "/", None), [], {}), "missing a required argument: 'lr'"),
        (
            lambda: bind_arguments(find_function(example, "/", None), [0.1], {"data": threading.Lock()}),
            "argument 'data' of example cannot be pickled",
        ),
        (
            lambda: refuse_large_globals(find_function(reads_a_large_global, "/", None), pickle.dumps),
            "'BIG', which has",
        ),
        (lambda: shoal.submit(reads_a_large_closure(), name="f"), "f reads 'data', which has 50.0 MB"),
        (lambda: bind_arguments(find_function(takes_any, "/", None), [1], {"a/b": 1}), "'a/b' cannot be the name"),
        (
            lambda: bind_arguments(find_function(takes_any, "/", None), [1], {"first": 1}),
            "'first' is an argument twice",
        ),
        (lambda: expand_calls({"a": 1}, None), "expected a list"),
        (lambda: expand_calls([], None), "describes 0 calls"),
        (lambda: shoal.submit(example, 0.1, on_change="what"), "on_change='what'"),
        (lambda: shoal.context(), "no run in this process"),
    ],
)
def test_bad_input_is_refused_before_anything_is_submitted(do: Callable[[], Any], words: str) -> None:
    with pytest.raises(shoal.InputError, match=words.replace("(", r"\(")):
        do()


def has_options(
    name: str = "a", on: int = 1, layout: str = "b", experiment: str = "c", request: Any = None
) -> None: ...


@pytest.mark.parametrize("given", [{"name": None}, {"on": None}, {"experiment": "001_a"}, {"request": {}}])
def test_a_keyword_that_is_an_option_and_a_parameter_is_refused_and_the_hint_works(given: dict[str, Any]) -> None:
    with pytest.raises(shoal.InputError, match="is an option of shoal and a parameter of has_options") as caught:
        shoal.submit(has_options, **given)
    call = str(caught.value.hint).partition("#")[0]
    names = {"map": lambda function, points: expand_calls(points, None)}
    assert eval(call, {"shoal": SimpleNamespace(**names), "has_options": has_options}).kwargs == given


@pytest.mark.parametrize("warned_with", ["signal", "file"])
def test_a_run_hears_that_its_time_is_nearly_up(tmp_path: Path, warned_with: str) -> None:
    stop, code = (
        tmp_path / "stop-1",
        (
            "import os, pathlib, signal, shoal; ctx = shoal.context(); print(ctx.should_stop());"
            "os.kill(os.getpid(), signal.SIGUSR1) if os.environ['SHOAL_WARN_WITH'] == 'signal'"
            " else pathlib.Path(os.environ['SHOAL_STOP_FILE']).touch(); print(ctx.should_stop())"
        ),
    )
    env = {
        "SHOAL_RUN": "001_a/f",
        "SHOAL_EXPERIMENT": "001_a",
        "SHOAL_SEED": "",
        "SHOAL_ATTEMPT": "1",
        "SHOAL_OUTPUT_DIR": str(tmp_path),
        "SHOAL_PROGRESS": str(tmp_path / "progress"),
        "SHOAL_STOP_FILE": str(stop),
        "SHOAL_WARN_WITH": warned_with,
    }
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["False", "True"]), done.stderr


def test_importing_shoal_costs_nothing(tmp_path: Path) -> None:
    """No module is loaded but the package itself, before and after a name is looked up."""
    code = "import sys; before = set(sys.modules); import shoal; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "['__future__', 'shoal']"
    code = "import shoal, shoal.actions.decide; print(callable(shoal.submit), shoal.submit.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == ["True", "shoal.functions.call_runs"]


def test_a_directory_that_has_just_changed_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a run may be written within the tick of the clock in which the directory was looked at."""
    seen: dict[RunKey, int] = {}
    key = RunKey(str(tmp_path), "001_a/f")
    folder = Path(layout.run_dir(*key))
    folder.mkdir(parents=True)
    now = time.time()
    os.utime(folder, (now, now + 3600))  # the clock of a file server that is ahead
    assert [_has_changed(key, seen) for _ in range(2)] == [True, False]
    monkeypatch.setattr(time, "time_ns", lambda: os.stat(folder).st_mtime_ns + 1_000_000)
    seen.clear()
    assert _has_changed(key, seen) and seen == {}, "it is looked at again"
    monkeypatch.undo()
    os.utime(folder, (now, now - 3600))
    assert [_has_changed(key, seen) for _ in range(2)] == [True, False]
