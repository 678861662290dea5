"""python -m chaos --seeds 20 [--launcher shoal|naive|submitit]; exit code 1 if any promise was broken."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from chaos.faults import inject_all
from chaos.judge import BROKEN, Counts, judge
from chaos.launchers import RUNS, Launcher, Said, make_launcher
from chaos.people import People
from chaos.plan import Plan, make_plan
from chaos.world import World, remove_leftovers

#: States from which a person submits again; all others are live or final.
AGAIN = ("new", "lost", "cancelled", "timeout", "preempted", "node_fail", "oom", "failed", "stopped")
COLUMNS = ("runs", *BROKEN, "thaw_s", "killed_at_end")


def main(argv: list[str]) -> int:
    options = _parse(argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that the world is closed
    total, rows = Counts(), []
    for seed in range(options.first, options.first + options.seeds):
        counts = run_seed(seed, options.launcher, options.duration, options.deadline, keep=options.keep)
        rows.append((str(seed), counts))
        total.add(counts)
        print(table([rows[-1]]), flush=True)
        for note in counts.notes:
            print(f"  {note}", flush=True)
    print(f"\n{options.launcher}, {options.seeds} seeds, {options.duration:g} s of faults each")
    print(table([*rows, ("sum", total)]))
    print(faults_of(total))
    return 0 if total.is_clean else 1


def run_seed(seed: int, launcher_name: str, duration_s: float, deadline_s: float, *, keep: bool = False) -> Counts:
    """One world, its faults, its healing and the way to the end of all runs; everything is gone afterwards."""
    plan = make_plan(seed, duration_s, RUNS)
    remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{os.getpid()}-{seed}-"))
    try:
        with World(folder / "w", f"t{os.getpid()}-c{seed}") as world:
            _write_work(world, plan)
            launcher = make_launcher(launcher_name, world, plan)
            people = People(world, launcher)
            _faults(world, launcher, people, plan, duration_s)
            said = _drive(world, launcher, people, plan, deadline_s)
            counts = judge(plan, world.ledger, people.looks, said, world.hits, launcher.state_dir)
            counts.crashed_commands = len(people.crashes)
            counts.injected = world.injected
            counts.notes.append(faults_of(counts))
            counts.notes += people.crashes[:5]
            if keep:
                kept = shutil.copytree(world.disk, folder.with_name(f"{folder.name}-kept"), symlinks=True)
                shutil.copytree(world.ledger.folder, kept / "ledger")
                lines = (f"{hit.at:.2f} {hit.until:.2f} {hit.kind} {sorted(hit.pids)}\n" for hit in world.hits)
                (kept / "faults").write_text("".join(lines))
                print(f"kept: {kept}")
            return counts
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_work(world: World, plan: Plan) -> None:
    folder = world.ledger.folder / "plan"
    folder.mkdir()
    for run, work in plan.runs.items():
        (folder / run.replace("/", ".")).write_text(work.words())


def _faults(world: World, launcher: Launcher, people: People, plan: Plan, duration_s: float) -> None:
    threads = [threading.Thread(target=people.give, args=(orders,)) for orders in plan.people]
    threads += [threading.Thread(target=people.watch), threading.Thread(target=people.begin)]
    threads.append(threading.Thread(target=world.keep_saves, args=(random.Random(plan.seed),)))
    for thread in threads:
        thread.daemon = True  # after an error or Ctrl-C they end with their commands, which the world ends
        thread.start()
    inject_all(world, launcher, plan.faults, duration_s)
    world.over.set()
    world.heal()
    for thread in threads:
        thread.join()


def _drive(world: World, launcher: Launcher, people: People, plan: Plan, deadline_s: float) -> dict[str, Said]:
    """Submit what is not done, as a person does, until all is or the time is over; the last states told."""
    end = time.monotonic() + deadline_s
    said: dict[str, Said] = {}
    while time.monotonic() < end:
        said = people.look() or said
        open_runs = [run for run, work in plan.runs.items() if not _is_final(said.get(run), work.exit_code)]
        if not open_runs:
            break
        world.resume_nodes()
        again = [run for run in open_runs if said.get(run, Said("new", None)).state in AGAIN]
        for argv in launcher.submit_argv(again) if again else []:
            people.command(argv)
        time.sleep(0.5)
    return said


def _is_final(said: Said | None, code: int) -> bool:
    """A run that fails on purpose may also have failed because it was killed: its exit code tells."""
    return said is not None and (said.state == "completed" if code == 0 else said == ("failed", code))


def faults_of(counts: Counts) -> str:
    return "faults: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.injected.items()))


def table(rows: list[tuple[str, Counts]]) -> str:
    head = ["seed", *(name.replace("_", " ") for name in COLUMNS), "faults"]
    body = [
        [seed, *(f"{getattr(counts, name):g}" for name in COLUMNS), str(counts.injected.total())]
        for seed, counts in rows
    ]
    widths = [max(len(row[place]) for row in [head, *body]) for place in range(len(head))]
    return "\n".join(
        "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)) for row in [head, *body]
    )


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="Number of seeds (default: 20)")
    parser.add_argument("--first", type=int, default=1, help="First seed (default: 1)")
    parser.add_argument("--launcher", choices=["shoal", "naive", "submitit"], default="shoal", help="What is tested")
    parser.add_argument("--duration", type=float, default=45, help="Seconds of faults per seed (default: 45)")
    parser.add_argument("--deadline", type=float, default=240, help="Seconds to finish all runs (default: 240)")
    parser.add_argument("--keep", action="store_true", help="Keep state folder and ledger of each seed")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
