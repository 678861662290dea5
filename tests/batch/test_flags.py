"""sbatch flags in every spelling, and the few that shoal keeps for itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.batch import sbatch_flags as flags_module
from shoal.batch.sbatch_flags import SbatchFlags, parse_flags
from shoal.errors import InputError
from shoal.model import Request


def parse(text: str, nodes: int | None = None) -> SbatchFlags:
    return parse_flags(text.split(), nodes=nodes)


def test_the_example_of_lead_becomes_a_portable_request() -> None:
    found = parse("--cpus-per-task=32 --partition=a100-galvani --time=3-00:00:00 --gres=gpu:4")
    assert found == SbatchFlags(request=Request(cpus=32, time="3d", gpus=4), partition="a100-galvani")


@pytest.mark.parametrize("text", ["--cpus-per-task=32", "--cpus-per-task 32", "-c 32", "-c32", "--cpus-per-t=32"])
def test_every_spelling_of_a_flag_means_the_same(text: str) -> None:
    assert parse(text).request == Request(cpus=32)


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("-N2", Request(nodes=2)),
        ("-N 2 --gpus-per-node=a100:4", Request(nodes=2, gpus=4, gpu_type="a100")),
        ("--gres=gpu", Request(gpus=1)),
        ("--gres=gpu:a100", Request(gpus=1, gpu_type="a100")),
        ("--gres=gpu:1g.5gb:2", Request(gpus=2, gpu_type="1g.5gb")),
        ("--gres=gres:gpu:2", Request(gpus=2)),
        ("--gres=gpu:1 --gres=gpu:3", Request(gpus=3)),
        ("-G 4", Request(gpus=4)),
        ("--gpus=h100:4 -N1", Request(nodes=1, gpus=4, gpu_type="h100")),
        ("--mem=64", Request(memory="64M")),
        ("--mem=64G", Request(memory="64G")),
        ("-t 24", Request(time="24m")),
        ("-t 1:30", Request(time="90s")),
        ("-t 2-12", Request(time="60h")),
    ],
)
def test_what_is_portable_goes_into_the_request_as_slurm_reads_it(text: str, request_: Request) -> None:
    found = parse(text)
    assert found.request == request_
    assert found.other == ()


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("--exclusive", ("--exclusive",)),
        ("--exclusive=user -H", ("--exclusive=user", "--hold")),
        ("-Hk", ("--hold", "--no-kill")),
        ("-Hd afterok:1", ("--hold", "--dependency=afterok:1")),
        ("-N2-4", ("--nodes=2-4",)),
        ("--nodes=1,3-5", ("--nodes=1,3-5",)),
        ("-N2 -G8", ("--gpus=8",)),
        ("--mem=0", ("--mem=0",)),
        ("--time=UNLIMITED", ("--time=UNLIMITED",)),
        ("--time=0", ("--time=0",)),
        ("--mem-per-cpu 4G", ("--mem-per-cpu=4G",)),
        ("--gres=tmpfs:10G", ("--gres=tmpfs:10G",)),
        ("--gres=gpu:a:1,gpu:b:1", ("--gres=gpu:a:1,gpu:b:1",)),
        ("--signal=B:USR1@60 --nice", ("--signal=B:USR1@60", "--nice")),
        ("--brand-new=7", ("--brand-new=7",)),
        ("--brand-new 7", ("--brand-new=7",)),
        ("--brand-new --hold", ("--brand-new", "--hold")),
        ("--comment=", ("--comment=",)),
        ("--comment=a --comment=b", ("--comment=b",)),
    ],
)
def test_the_rest_stays_word_for_word(text: str, other: tuple[str, ...]) -> None:
    assert parse(text).other == other


def test_other_gres_stay_beside_the_gpus() -> None:
    found = parse("--gres=gpu:a100:2,tmpfs:10G")
    assert (found.request, found.other) == (Request(gpus=2, gpu_type="a100"), ("--gres=tmpfs:10G",))


def test_a_total_of_gpus_over_several_nodes_of_the_step_is_not_taken_for_gpus_per_node() -> None:
    assert parse("--gpus=8", nodes=2).other == ("--gpus=8",)
    assert parse("--gpus=8", nodes=1).request.gpus == 8


def test_requeue_is_a_field_and_the_last_word_counts() -> None:
    assert parse("--requeue").requeue is True
    assert parse("--requeue --no-requeue").requeue is False
    assert parse("").requeue is None


def test_later_flags_win_over_those_of_a_profile() -> None:
    base = parse("--comment=a --exclusive -A lab -t 10 --requeue")
    both = parse("--comment=b -t 20").over(base)
    assert both.other == ("--exclusive", "--comment=b")
    assert (both.account, both.request.time, both.requeue) == ("lab", "00:20:00", True)


def test_of_the_ways_to_ask_for_memory_the_last_one_counts() -> None:
    """Slurm takes only one of them, and a resume adds its --mem behind what the run had."""
    found = parse("--mem-per-cpu=4G --mem=64G")
    assert (found.request.memory, found.other) == ("64G", ())
    found = parse("--mem=64G --mem-per-cpu=4G --mem-per-gpu=8G")
    assert (found.request.memory, found.other) == (None, ("--mem-per-gpu=8G",))
    profile = parse("--mem-per-cpu=4G --exclusive")
    assert parse("--mem=64G").over(profile).other == ("--exclusive",)
    assert parse("--mem-per-gpu=8G").over(profile).other == ("--exclusive", "--mem-per-gpu=8G")


@pytest.mark.parametrize(
    "text",
    ["-J x", "--job-name=x", "-o x", "--output=x", "-e x", "--array=1-3", "-a1", "--wrap=x", "--parsable", "-W", "-HW",
     "-WH", "--test-only", "--export=ALL", "-D /x", "--chdir=/", "-M c", "--open-mode=append", "--help", "--outpu=x"],
)  # fmt: skip
def test_a_flag_that_shoal_owns_is_refused_with_the_reason_and_a_way(text: str) -> None:
    with pytest.raises(InputError, match="belongs to shoal") as caught:
        parse(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nodes=many"], "--nodes: 'many' is not a number of nodes"),
        (["--nodes=0"], "--nodes: '0' is not a whole number"),
        (["-c", "-3"], "--cpus-per-task: '-3' is not a whole number"),
        (["-c"], "--cpus-per-task needs a value"),
        (["--time=soon"], "--time: 'soon' is not a duration"),
        (["--mem=lots"], "--mem: 'lots' is not an amount"),
        (["--gres=gpu:a b:1"], "is not a GPU request"),
        (["--gres=gpu:a100:x"], "is not a GPU request"),
        (["--gpus=x:y"], "is not a number of GPUs"),
        (["--hold=yes"], "takes no value"),
        (["train.py"], "'train.py' is not an sbatch flag"),
        (["--exclusive", "user"], "'user' is not an sbatch flag"),
        (["--ntasks", "=", "2"], "'2' is not an sbatch flag"),
        (["–time=3"], "not the one on the keyboard"),
        ([":"], "heterogeneous"),
        (["--"], "is not an sbatch flag"),
        (["-Z"], "sbatch has no flag -Z"),
        ([""], "is not an sbatch flag"),
        (["--comment=a\nb"], "line breaks"),
        (["--a b=c"], "is not an sbatch flag"),
        (["--partition="], "--partition: the value is empty"),
    ],
)
def test_a_bad_value_or_word_is_named(words: list[str], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_flags(words)
    assert sentence in caught.value.message


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(st.one_of(st.text(max_size=12), st.sampled_from(["-c", "--gres=gpu:", "-N", "--time=", "-Hk", "--x"]))))
def test_any_words_give_flags_or_an_input_error_and_parse_again_to_the_same(words: list[str]) -> None:
    try:
        found = parse_flags(words)
    except InputError:
        return
    assert parse_flags(found.other) == SbatchFlags(other=found.other)


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="sbatch is not installed")
def test_the_table_of_options_agrees_with_the_installed_sbatch(tmp_path: Path) -> None:
    """Its own message says whether an option takes a value; nothing is contacted before the options are read."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=n1\n")
    env = {"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    # All options in one call each way: getopt names every one that it does not like.
    for takes, word in ((0, "--{}=zz"), (2, "--{}")):
        for name in (name for name, kind in flags_module._ARITY.items() if kind == takes):
            done = subprocess.run(
                ["sbatch", word.format(name)], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
            )
            if "unrecognized option" in done.stderr:
                continue  # newer than this sbatch
            assert ("doesn't allow an argument" if takes == 0 else "requires an argument") in done.stderr, name
