"""One description becomes points: values, grids, zips, draws, exclusions, derived values, rules; what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.describe.document import Document
from shoal.describe.expand import SweepPoint, count_points, expand_points
from shoal.describe.expressions import EvaluationError, parse_expression
from shoal.describe.parameters import MAX_RUNS, Params, parse_seeds, parse_values
from shoal.describe.sweep_file import SweepBlock, parse_sweep, with_flags
from shoal.errors import InputError


def block(text: str) -> SweepBlock:
    return parse_sweep(Document("000_train.toml", text))


def points(text: str) -> list[SweepPoint]:
    return expand_points(block(text))


def params(text: str) -> list[Params]:
    return [point.values for point in points(text)]


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        points(text)
    return caught.value.message


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("4:80:4", list(range(4, 81, 4))),
        ("0.1,0.01", [0.1, 0.01]),
        ("0:1:0.25", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("0.1:0.3:0.1", [0.1, 0.2, 0.3]),
        ("3:1:-1", [3, 2, 1]),
        ("1e-4:1e-1:x10", [0.0001, 0.001, 0.01, 0.1]),
        ("1:16:x2", [1, 2, 4, 8, 16]),
        ("2:9:3", [2, 5, 8]),
        ("adam,muon", ["adam", "muon"]),
        ("true,false", [True, False]),
        ("007,1e3", ["007", 1000.0]),
        ("1:3,10", [1, 2, 3, 10]),
        ("nan", ["nan"]),
    ],
)
def test_words_become_values_and_ranges_include_their_end(words: str, values: list[object]) -> None:
    found = parse_values(words)
    assert found == values
    assert [type(one) for one in found] == [type(one) for one in values]


@pytest.mark.parametrize("words", ["4:80:0", "4:80:-4", "1:8:x1", "0:8:x2", "8:1:x2", "1:-5"])
def test_a_range_that_never_ends_is_refused(words: str) -> None:
    with pytest.raises(InputError, match="never ends"):
        parse_values(words)


@pytest.mark.parametrize("words", ["0:1e12", "0:1:1e-12", "0:999999999999999999999999", "1:1e300", "0-99999999"])
def test_a_range_of_too_many_values_is_refused_before_it_is_built(words: str) -> None:
    with pytest.raises(InputError, match="are the limit"):
        parse_seeds(words) if "-" in words and ":" not in words else parse_values(words)


@given(st.integers(-50, 50), st.integers(0, 200), st.integers(1, 9))
def test_a_range_of_whole_numbers_is_pythons_with_its_end_included(first: int, length: int, step: int) -> None:
    assert parse_values(f"{first}:{first + length}:{step}") == list(range(first, first + length + 1, step))


@given(st.text(max_size=30))
def test_any_text_is_values_or_a_clear_refusal(text: str) -> None:
    try:
        assert parse_values(text)
    except InputError as error:
        assert error.message


def test_seeds_are_ranges_lists_or_one_number() -> None:
    assert parse_seeds("0-2,7") == [0, 1, 2, 7]
    assert parse_seeds([3, 1]) == [3, 1]
    assert parse_seeds(range(3)) == [0, 1, 2]
    assert parse_seeds(5) == [5]
    wrong_ones: tuple[object, ...] = ("2-0", "a", "", [1, 1], [-1], ["0"], [True], {}, [])
    for wrong in wrong_ones:
        with pytest.raises(InputError):
            parse_seeds(wrong)


def test_a_grid_is_every_combination_and_seeds_turn_fastest() -> None:
    found = points('seeds = "0-1"\n[sweep]\ndepth = "4:8:4"\nlr = [0.1, 0.01]')
    assert [(one.params["depth"], one.params["lr"], one.seed) for one in found] == [
        (depth, lr, seed) for depth in (4, 8) for lr in (0.1, 0.01) for seed in (0, 1)
    ]


def test_zipped_lists_walk_together_and_may_be_crossed_with_a_grid() -> None:
    found = params('[sweep]\nwd = [0, 1]\n[zip]\nopt = ["adam", "muon"]\nlr = [0.1, 0.02]')
    assert found == [{"wd": wd, "opt": opt, "lr": lr} for wd in (0, 1) for opt, lr in (("adam", 0.1), ("muon", 0.02))]
    assert len(points("[[zip]]\na = [1, 2]\nb = [3, 4]\n[[zip]]\nc = [5, 6]\nd = [7, 8]")) == 4


def test_zipped_lists_of_unequal_length_are_an_error_that_counts_them() -> None:
    assert "opt has 2, lr has 3" in refusal('[zip]\nopt = ["adam", "muon"]\nlr = [1, 2, 3]')
    with pytest.raises(InputError, match="a has 2, b has 1"):
        with_flags(block(""), ["a=1,2", "b=3"], ["a,b"])


def test_explicit_points_and_constants() -> None:
    assert params("[params]\nwidth = 8\n[[points]]\nlr = 0.1\n[[points]]\nlr = 0.2\nwarm = true") == [
        {"width": 8, "lr": 0.1},
        {"width": 8, "lr": 0.2, "warm": True},
    ]


def test_dotted_names_are_parameters_like_any_other() -> None:
    found = params('[sweep]\noptim.lr = [1, 2]\n[derived]\ntwice = "optim.lr * 2"')
    assert found == [{"optim.lr": 1, "twice": 2}, {"optim.lr": 2, "twice": 4}]


def test_more_samples_keep_the_first_ones_and_another_drawn_parameter_changes_none() -> None:
    few = params("num_samples = 3\nsample_seed = 1\n[sweep]\nlr = { log_uniform = [1e-4, 1e-1] }")
    more = params(
        "num_samples = 5\nsample_seed = 1\n[sweep]\nlr = { log_uniform = [1e-4, 1e-1] }\nn = { integers = [1, 1000] }"
    )
    other = params("num_samples = 3\nsample_seed = 2\n[sweep]\nlr = { log_uniform = [1e-4, 1e-1] }")
    assert [one["lr"] for one in more[:3]] == [one["lr"] for one in few]
    assert few != other
    assert all(1e-4 <= float(str(one["lr"])) <= 1e-1 for one in more)


def test_exclusions_are_conditions_or_values_that_match() -> None:
    text = "[sweep]\ndepth = [1, 2, 3]\nlr = [0.1, 0.2]\n"
    assert len(params('exclude = ["depth == 2 and lr > 0.1"]\n' + text)) == 5
    assert len(params("exclude = [{ depth = 2 }]\n" + text)) == 4
    assert len(params('exclude = ["cost2 > 0.5"]\n' + text + '[derived]\ncost2 = "depth * lr"')) <= 6
    assert "no run is left" in refusal('exclude = ["depth > 0"]\n' + text)


def test_derived_values_follow_from_others_in_any_order_and_underscores_stay_inside() -> None:
    found = params('[sweep]\nb = [2]\n[derived]\nd = "_c + 1"\n_c = "b ** 2"')
    assert found == [{"b": 2, "d": 5}]


def test_look_up_tables_take_one_key_or_several() -> None:
    found = params(
        '[sweep]\nmodel = ["s", "l"]\nbatch = [64]\n[tables.steps]\ns = { 64 = 100 }\nl = { 64 = 400 }\n'
        '[tables.fsdp]\ns = false\nl = true\n[derived]\nsteps = "steps[model, batch]"\nfsdp = "fsdp[model]"'
    )
    assert [(one["steps"], one["fsdp"]) for one in found] == [(100, False), (400, True)]


def test_a_missing_entry_names_the_table_the_key_and_the_run() -> None:
    message = refusal('[sweep]\nmodel = ["s", "xl"]\n[tables.t]\ns = 1\n[derived]\nn = "t[model]"')
    assert "t[xl]" in message and "it has s" in message and "model = xl" in message and "000_train.toml:6" in message


def test_dividing_by_zero_names_the_value_and_the_run() -> None:
    message = refusal('[sweep]\nworkers = [0, 1]\n[derived]\nshare = "8 // workers"')
    assert "share = 8 // workers divides by zero" in message and "workers = 0" in message


def test_a_broken_rule_names_the_run_the_rule_and_the_values_it_read() -> None:
    message = refusal('require = ["batch % gpus == 0"]\n[params]\ngpus = 8\n[sweep]\nbatch = [64, 60]')
    assert "batch % gpus == 0" in message and "batch = 60, gpus = 8" in message and "000_train.toml:1" in message


def test_a_rule_that_is_neither_true_nor_false_is_an_error() -> None:
    assert "neither true nor false" in refusal('require = ["batch % 8"]\n[sweep]\nbatch = [64]')


def test_a_circle_of_derived_values_is_shown() -> None:
    assert "a -> b -> a" in refusal('[derived]\na = "b + 1"\nb = "a + 1"')


def test_an_unknown_name_is_guessed() -> None:
    assert "did you mean depth?" in refusal('require = ["dpeth > 1"]\n[sweep]\ndepth = [4]')


def test_different_points_get_different_requests() -> None:
    found = points(
        '[sweep]\ndepth = [4, 40]\n[tables.nodes]\n4 = 1\n40 = 2\n[request]\ngpus = 1\ntime = "20m"\n'
        'nodes = "=nodes[depth]"\n[[requests]]\nwhen = "depth > 20"\ngpus = 4\nmemory = "64G"'
    )
    assert [(one.request.nodes, one.request.gpus, one.request.memory) for one in found] == [(1, 1, None), (2, 4, "64G")]
    assert all(one.request.time == "00:20:00" for one in found)


def test_a_computed_request_must_make_sense() -> None:
    assert "must be a whole number" in refusal('[params]\nd = 3\n[request]\nnodes = "=d / 2"')
    assert "cannot have nodes = 0" in refusal('[params]\nd = 1\n[request]\nnodes = "=d // 2"')


def test_ten_million_combinations_are_refused_without_being_built() -> None:
    text = "".join(f'{name} = "1:100"\n' for name in "abcd")
    described = block(f"[sweep]\n{text}")
    assert count_points(described) == 10**8
    with pytest.raises(InputError, match=r"100,000,000 runs .* are the limit"):
        expand_points(described)
    assert MAX_RUNS < 10**7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sweep]\nseed = [1]", "filled in by shoal"),
        ("[sweep]\nlr = [0.1, 0.1]", "twice"),
        ("[sweep]\nlr = []", "no values"),
        ("[sweep]\nlr = [[1]]", "a parameter is"),
        ("[sweep]\nlr = { uniform = [0, 1] }", "num_samples is not set"),
        ("num_samples = 3\n[sweep]\nlr = [1]", "nothing is drawn"),
        ("num_samples = 3\n[sweep]\nlr = { uniform = [1, 0] }", "nothing lies between"),
        ("[params]\nlr = 1\n[sweep]\nlr = [2]", "described twice"),
        ("[sweep]\n_x = [2]", "_ in front"),
        ('[sweep]\n"a b" = [2]', "cannot be a parameter"),
        ("[params]\nx = nan", "cannot be a parameter"),
        ("swep = 1", "did you mean 'sweep'"),
        ("[[requests]]\nnodes = 2", "missing key 'requests.0.when'"),
        ("exclude = [3]", "list of conditions"),
    ],
)
def test_mistakes_are_told_with_their_place(text: str, words: str) -> None:
    message = refusal(text)
    assert words in message and message.startswith("000_train.toml")


def test_flags_replace_what_the_file_says() -> None:
    described = with_flags(
        block('seeds = "0"\n[params]\nwd = 1\n[sweep]\nlr = [0.1]'), ["lr=0.2,0.3", "wd=2"], (), "0-1"
    )
    assert [(one.params, one.seed) for one in expand_points(described)] == [
        ({"lr": lr, "wd": 2}, seed) for lr in (0.2, 0.3) for seed in (0, 1)
    ]
    with pytest.raises(InputError, match="cannot be set alone"):
        with_flags(block("[zip]\na = [1]\nb = [2]"), ["a=1"])
    for wrong in (["lr"], ["lr=1", "lr=2"], ["lr=,"], ["seed=1"]):
        with pytest.raises(InputError):
            with_flags(block(""), wrong)


VALUES: Params = {"a": 6, "b": 4, "s": "muon", "t": True}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a * b + 1", 25),
        ("a // b", 1),
        ("a / b", 1.5),
        ("-a % b", 2),
        ("min(a, b, 5)", 4),
        ("s == 'muon' and not t", False),
        ("1 if a > b else 2", 1),
        ("a in [4, 6]", True),
        ("'x' + str(a)", "x6"),
        ("ceil(a / b)", 2),
        ("1 < b < a", True),
        ("int(log2(1024))", 10),
        ("true and not false", True),
    ],
)
def test_expressions_compute_what_they_say(text: str, value: object) -> None:
    assert parse_expression(text, {}).value(VALUES) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "a.__class__",
        "().__class__.__bases__",
        "[x for x in (1, 2)]",
        "lambda: 1",
        "open('/etc/passwd')",
        "a if",
        "f'{a}'",
        "(a := 3)",
        "a @ b",
        "a << 1000",
        "tables['x']",
        "min(x=1)",
        "b'1'",
        "None",
        "...",
        "1j",
        "(" * 600 + "1",
        "-" * 500 + "1",
        "9" * 999,
    ],
)
def test_nothing_but_the_small_language_is_accepted(text: str) -> None:
    with pytest.raises((InputError, EvaluationError)):
        parse_expression(text, {}).value(VALUES)


@pytest.mark.parametrize(
    "text", ["9**9**9", "2**200*2**200", "'a' * 9", "s + 1", "s > 1", "(0-8)**0.5", "log(0)", "1e308*10"]
)
def test_what_has_no_value_or_too_large_a_one_says_so(text: str) -> None:
    with pytest.raises(EvaluationError):
        parse_expression(text, {}).value(VALUES)


@given(st.text(max_size=40))
def test_no_text_does_more_than_compute_or_be_refused(text: str) -> None:
    try:
        parse_expression(text, {"t": {"1": 1}}).value(VALUES)
    except (InputError, EvaluationError):
        pass
