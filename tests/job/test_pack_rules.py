"""The pure parts of packs: an allocator that assigns nothing twice, order, simulation, expectations, GPUs, names."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_up import ME, START
from shoal.describe.command_file import command_step, read_command_file
from shoal.describe.project import bare_project
from shoal.errors import InputError
from shoal.job import job_constraints
from shoal.job.allocation import VisibleGpus, gpu_environment, thread_environment, visible_gpus_of_node
from shoal.job.pack.allocator import GPU_PARTS, Allocator, Demand, count_gpu_parts, even_share
from shoal.job.pack.queue import QueuedRun, RunQueue, read_queue
from shoal.plan.layouts import PackJob, expect_durations, fill_gpu_shares, longest_first, min_makespan_s, simulate
from shoal.plan.pack_queue import PackOptions

shares = st.sampled_from([0, 1, 250_000, 333_333, 500_000, GPU_PARTS, 2 * GPU_PARTS])


@given(
    slots=st.integers(1, 8),
    gpus=st.integers(0, 4),
    cpus=st.integers(0, 6),
    keep_whole=st.booleans(),
    nodes=st.integers(1, 3),
    wishes=st.lists(st.tuples(shares, st.integers(0, 3), st.integers(1, 3), st.booleans()), max_size=60),
)
def test_nothing_is_ever_lent_twice(
    slots: int, gpus: int, cpus: int, keep_whole: bool, nodes: int, wishes: list[tuple[int, int, int, bool]]
) -> None:
    allocator = Allocator(slots, gpus, range(cpus), keep_whole, nodes)
    for gpu_parts, wanted_cpus, wanted_slots, give_first in wishes:
        if give_first and allocator.held:
            allocator.give(allocator.held[0])
        assignment = allocator.take(Demand(gpu_parts, wanted_cpus, wanted_slots))
        if assignment is not None:
            assert len(assignment.cpus) == wanted_cpus and 1 + len(assignment.empty) == wanted_slots
            assert assignment.share * len(assignment.gpus) == gpu_parts
            assert {slot // slots for slot in assignment.empty} <= {assignment.slot // slots}, "all on one node"
        for node in range(nodes):
            held = [one for one in allocator.held if one.slot // slots == node]
            lent_slots = [slot for one in held for slot in (one.slot, *one.empty)]
            assert len(set(lent_slots)) == len(lent_slots) <= slots
            lent_cpus = [cpu for one in held for cpu in one.cpus]
            assert len(set(lent_cpus)) == len(lent_cpus)
            for gpu in range(gpus):
                assert sum(one.share for one in held if gpu in one.gpus) <= GPU_PARTS
    for one in allocator.held:
        allocator.give(one)
    for _ in range(nodes):
        everything = allocator.take(Demand(gpus * GPU_PARTS, cpus, slots))
        assert everything is not None and len(everything.gpus) == gpus
    assert allocator.is_full


def test_runs_go_to_the_emptiest_node() -> None:
    allocator = Allocator(2, 1, range(2), nodes=2)
    assert [assignment.slot for assignment in map(allocator.take, [Demand(cpus=1)] * 4) if assignment] == [0, 2, 1, 3]


def test_a_holding_is_given_back_once() -> None:
    allocator = Allocator(2, 1, range(2))
    assignment = allocator.take(Demand(GPU_PARTS, 1))
    assert assignment is not None
    allocator.give(assignment)
    with pytest.raises(ValueError, match="not lent"):
        allocator.give(assignment)


def test_shares_spread_over_gpus_unless_whole_ones_are_wanted() -> None:
    spread, kept = Allocator(8, 2, ()), Allocator(8, 2, (), keep_whole=True)
    for allocator in (spread, kept):
        assert allocator.take(Demand(GPU_PARTS // 4)) is not None
    assert spread.take(Demand(GPU_PARTS // 4)).gpus == (1,)  # type: ignore[union-attr]
    assert kept.take(Demand(GPU_PARTS // 4)).gpus == (0,)  # type: ignore[union-attr]
    assert kept.take(Demand(GPU_PARTS)).gpus == (1,)  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", [-1, 1.5, float("nan"), 0.0001, 5000])
def test_impossible_numbers_of_gpus_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError):
        count_gpu_parts(wrong)


def test_a_third_of_a_gpu_fits_three_times() -> None:
    allocator = Allocator(9, 1, ())
    assert sum(allocator.take(Demand(count_gpu_parts(1 / 3))) is not None for _ in range(4)) == 3


def test_gpus_are_divided_among_slots_when_nothing_was_said() -> None:
    assert [even_share(slots, 4) for slots in (1, 2, 4, 8, 5)] == [
        4 * GPU_PARTS,
        2 * GPU_PARTS,
        GPU_PARTS,
        GPU_PARTS // 2,
        GPU_PARTS // 2,
    ]
    assert even_share(4, 0) == 0


durations = st.lists(st.floats(0.01, 100), min_size=1, max_size=60)


@given(durations, st.integers(1, 8), st.booleans())
def test_every_schedule_keeps_the_list_scheduling_bound(lengths: list[float], slots: int, sort: bool) -> None:
    jobs = [PackJob(at, expect_s=length) for at, length in enumerate(lengths)]
    played = simulate(longest_first(jobs) if sort else jobs, slots=slots)
    bound = min_makespan_s(jobs, slots=slots)
    assert sorted(one.job.place for one in played.placed) == list(range(len(jobs)))
    assert bound * (1 - 1e-9) <= played.makespan <= bound * (2 - 1 / slots) + 1e-6
    assert played.busy == pytest.approx(sum(lengths))
    for slot in range(slots):
        mine = sorted((one.start, one.end) for one in played.placed if one.assignment.slot == slot)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(mine))


def test_the_seeds_example_longest_first_ends_within_3_percent_of_the_bound() -> None:
    jobs = [PackJob(k, expect_s=0.085 * k) for k in range(1, 21)]
    bound = min_makespan_s(jobs, slots=4)
    assert simulate(jobs, slots=4).makespan / bound == pytest.approx(1.143, abs=0.001)
    assert simulate(longest_first(jobs), slots=4).makespan / bound == pytest.approx(1.029, abs=0.001)


def test_wide_runs_start_first_and_narrow_ones_fill_the_gaps() -> None:
    jobs = [
        PackJob(0, GPU_PARTS, expect_s=10),
        PackJob(1, 4 * GPU_PARTS, expect_s=1),
        PackJob(2, GPU_PARTS, expect_s=5),
    ]
    played = simulate(longest_first(jobs), slots=4, gpus=4)
    assert [one.job.place for one in played.placed] == [1, 0, 2]
    assert played.makespan == 11


def test_a_run_that_is_overtaken_again_and_again_is_waited_for() -> None:
    allocator = Allocator(4, 2, ())
    queue = RunQueue(
        [QueuedRun("wide", 0, Demand(2 * GPU_PARTS)), *(QueuedRun(f"n{k}", k, Demand(GPU_PARTS)) for k in range(1, 40))]
    )
    first = allocator.take(Demand(GPU_PARTS))
    assert first is not None
    started = []
    while (choice := queue.next(allocator, None)) is not None and choice.item.name != "wide":
        started.append(choice.item.name)
        allocator.give(choice.assignment)
    assert len(started) == 8
    allocator.give(first)
    assert queue.next(allocator, None).item.name == "wide"  # type: ignore[union-attr]


def test_slots_that_are_closed_leave_their_gpus_to_the_others_and_what_needs_more_slots_holds_nobody_up() -> None:
    allocator = Allocator(2, 2, (), nodes=2)
    held = allocator.take(Demand(2 * GPU_PARTS))
    assert held is not None and held.slot == 0
    for slot in (0, 2):
        allocator.close(slot)
    allocator.give(held)
    assert allocator.never(Demand(2 * GPU_PARTS)) is None and allocator.never(Demand(slots=2)) is not None
    queue = RunQueue(
        [QueuedRun("wide", 0, Demand(slots=2)), *(QueuedRun(f"thin{n}", n, Demand(GPU_PARTS)) for n in range(1, 20))]
    )
    for _ in range(19):
        choice = queue.next(allocator, None)
        assert choice is not None and choice.assignment.slot in (1, 3)
        allocator.give(choice.assignment)
    assert queue.is_stuck(allocator, None) and not allocator.is_closed
    for slot in (1, 3):
        allocator.close(slot)
    assert allocator.is_closed and queue.next(allocator, None) is None


def test_a_run_starts_only_if_it_fits_into_the_time_left() -> None:
    allocator = Allocator(2, 0, ())
    queue = RunQueue(
        [
            QueuedRun("long", 0, Demand(), expect_s=100),
            QueuedRun("short", 1, Demand(), expect_s=5),
            QueuedRun("new", 2, Demand()),
        ]
    )
    assert queue.next(allocator, 50.0).item.name == "short"  # type: ignore[union-attr]
    assert queue.next(allocator, 50.0).item.name == "new"  # type: ignore[union-attr]
    assert queue.is_stuck(allocator, 50.0) and not queue.is_stuck(allocator, None)
    assert not queue.fits(QueuedRun("new", 3, Demand()), 0.0)


def test_costs_become_seconds_as_soon_as_one_run_has_finished() -> None:
    queue = RunQueue([QueuedRun("a", 0, Demand(), cost=10)])
    assert queue.expected_s(queue.waiting[0]) is None
    queue.learn(QueuedRun("b", 1, Demand(), cost=2), duration_s=6)
    assert queue.expected_s(queue.waiting[0]) == pytest.approx(30)


def test_expectations_come_from_earlier_attempts_and_costs() -> None:
    jobs = [PackJob(0, cost=1), PackJob(1, cost=2), PackJob(2, cost=4)]
    assert expect_durations(jobs, {})[1] == "their cost, in no unit"
    found, source = expect_durations(jobs, {1: 10.0})
    assert [job.expect_s for job in found] == [5, 10, 20]
    assert source == "1 earlier attempts and their cost"
    assert [job.expect_s for job in expect_durations([PackJob(0), PackJob(1)], {0: 3.0})[0]] == [3, 3]


def test_jobs_that_leave_their_share_open_get_the_engines() -> None:
    assert [job.gpu_parts for job in fill_gpu_shares([PackJob(0, -1), PackJob(1, GPU_PARTS)], 8, 4)] == [
        GPU_PARTS // 2,
        GPU_PARTS,
    ]


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, VisibleGpus("CUDA_VISIBLE_DEVICES", ["0", "2"])),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5f,MIG-1a"}, VisibleGpus("CUDA_VISIBLE_DEVICES", ["GPU-5f", "MIG-1a"])),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,2"}, VisibleGpus("CUDA_VISIBLE_DEVICES", ["0"])),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, VisibleGpus("CUDA_VISIBLE_DEVICES", [])),
        ({"CUDA_VISIBLE_DEVICES": ""}, VisibleGpus("CUDA_VISIBLE_DEVICES", [])),
        ({"ROCR_VISIBLE_DEVICES": "1,3"}, VisibleGpus("ROCR_VISIBLE_DEVICES", ["1", "3"])),
        ({"HIP_VISIBLE_DEVICES": "1"}, VisibleGpus("HIP_VISIBLE_DEVICES", ["1"])),
        ({"SLURM_JOB_ID": "7"}, VisibleGpus()),
    ],
)
def test_gpus_are_those_that_we_were_given(environ: dict[str, str], found: VisibleGpus) -> None:
    seen = visible_gpus_of_node(environ)
    assert (seen.variable, list(seen.ids)) == (found.variable, list(found.ids))


def test_a_run_sees_its_gpus_by_the_names_they_came_with() -> None:
    nvidia = VisibleGpus("CUDA_VISIBLE_DEVICES", ["GPU-a", "GPU-b", "GPU-c"])
    assert gpu_environment(nvidia, (0, 2)) == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-c"}
    assert gpu_environment(nvidia, ()) == {"CUDA_VISIBLE_DEVICES": ""}
    amd = VisibleGpus("ROCR_VISIBLE_DEVICES", ["2", "3"])
    assert gpu_environment(amd, (1,)) == {"ROCR_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "0"}


def test_threads_follow_the_cpus_unless_somebody_said_otherwise() -> None:
    found = thread_environment(3, {"OMP_NUM_THREADS": "1"})
    assert found["MKL_NUM_THREADS"] == "3" and "OMP_NUM_THREADS" not in found


def test_a_queue_that_names_a_run_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="names run 5 of 1"):
        read_queue({"queue": [{"index": 5}]}, ["a/b"])


def test_options_that_cannot_be_served_name_their_flag() -> None:
    for options, word in (
        (PackOptions(slots=0), "--slots"),
        (PackOptions(gpus_per_run=1.5), "--gpus-per-run"),
        (PackOptions(gpus_per_run=4, gpus=2), "--gpus-per-run"),
        (PackOptions(retries=-1), "--retries"),
    ):
        with pytest.raises(InputError) as error:
            options.validate()
        assert error.value.place == word


def test_a_file_of_commands_is_runs_named_after_what_they_do(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text("# comment\npython train.py --depth 4\n\necho {a} | wc -c\n")
    project = bare_project(tmp_path, {"HOME": str(tmp_path)})
    first, second = read_command_file(file, project, None)
    assert first.command == ["python", "train.py", "--depth", "4"]
    assert first.experiment == "pack_jobs" and first.stem.startswith("python-train.py-depth-4-")
    assert second.command == ["bash", "-c", "echo {{a}} | wc -c"]
    file.write_text("# moved\n\n\npython train.py --depth 4\n")
    assert read_command_file(file, project, None)[0].name == first.name
    file.write_text("true\ntrue\n")
    with pytest.raises(InputError, match="the same command as line 1"):
        read_command_file(file, project, None)


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (["python", "train.py", "--lr", "{lr}"], "train"),
        (["python3.11", "-m", "lead.train"], "train"),
        (["bash", "-c", "sleep {k}"], "run_bash"),
        (["/opt/bin/simulate", "{k}"], "simulate"),
        (["X=1", "../a/run-it.sh"], "run_it"),
    ],
)
def test_a_command_is_called_after_its_script(command: list[str], word: str) -> None:
    assert command_step(command) == word


@pytest.mark.parametrize(
    ("lost", "sinfo", "failed"),
    [
        ({"job_id": "7", "life": 0, "nodes": "n1"}, "", ["n1"]),  # Slurm has started our job again
        ({"job_id": "7", "life": 1, "nodes": "n1"}, "n1|idle", []),  # an engine of this very job was killed
        ({"job_id": "8", "life": 0, "nodes": "n1"}, "n1|idle", []),  # another pilot is silent, its node is well
        ({"job_id": "8", "life": 0, "nodes": "n1"}, "n1|down*", ["n1"]),
        ({"job_id": "7", "life": 0, "nodes": "n[1-2]"}, "n1|idle n2|down", ["n2"]),
        ({"job_id": "7", "life": 0, "nodes": "n[1-2]"}, "", []),
        ({"job_id": None, "life": 0, "nodes": None}, "", []),
    ],
)
def test_an_engine_was_lost_with_its_node_if_slurm_says_so_or_its_job_came_back(
    lost: dict[str, Any], sinfo: str, failed: list[str]
) -> None:
    me = ME._replace(job_id="7", life=1)
    assert job_constraints.nodes_lost_with(START._replace(**lost), me, lambda argv: (bool(sinfo), sinfo)) == failed
