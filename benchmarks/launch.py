"""What launching costs: from the job's start to the program's first line, beside a hand-written script; and a restart.

    python -m benchmarks launch

The hand-written script has the same srun and torchrun lines. Both note the time as their first command, and every rank
notes it as its first line; the later rank counts. Most of that time is torchrun importing torch, and on a busy machine
it varies by seconds. So what comes before torchrun starts and after it has made its ranks is measured on its own: that
sum is what shoal adds. Then three replicas train on this machine, one is killed with -9, and the logs tell when it was
started again and how long the others stood still. Needs root, torch and torchft.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

from shoal.sandbox import Sandbox, SandboxSpec

REPEATS = 6
PROMISE_S, RESTART_PROMISE_S, HEARTBEAT_S = 0.5, 2.0, 5.0
EXAMPLES = Path(__file__).parent.parent / "examples" / "launch"
SHOAL = [sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main())"]

#: The second number is the age of the process, which exec does not change: made by torchrun or srun.
FIRST = """\
import time
now, up = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
import os
with open("/proc/self/stat") as file:
    born = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
with open(os.path.join(os.environ["MARKS"], "rank-" + os.environ["RANK"]), "w") as file:
    file.write("%r %r" % (now, up - born))
"""
#: Both sides start torchrun and ranks by this, which notes when torchrun starts.
PYTHON = """\
#!/bin/sh
[ "$2" != torch.distributed.run ] || date +%s.%N > "$MARKS/torchrun-$SLURM_NODEID"
exec {python} "$@"
"""
BY_HAND = {
    "torchrun": """\
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
srun --kill-on-bad-exit=1 --ntasks-per-node=1 --cpus-per-task=4 {python} -m torch.distributed.run --nnodes {nodes} \\
    --nproc-per-node 2 --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "${{hosts[0]}}:29555" first.py
""",
    "srun": """\
srun --kill-on-bad-exit=1 --ntasks-per-node=2 --cpus-per-task=2 \\
    bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; exec "$@"' rank \\
    {python} first.py
""",
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name:
        folder = Path(name)
        first_lines(folder)
        restart(folder)


def first_lines(folder: Path) -> None:
    spec = SandboxSpec(name=f"bench-{os.getpid()}"[:24], nodes=2, gpus=2, cpus=8, hosts=True)
    with Sandbox(spec) as sandbox:
        print(
            "| 2 ranks on each node | by hand (s) | shoal (s) | difference (s) | before torchrun, after it (s) | goal |"
        )
        print("|---|---|---|---|---|---|")
        for mode, nodes in product(BY_HAND, (1, 2)):
            root = folder / f"{mode}-{nodes}"
            make_project(root, mode, nodes)
            hand, ours = [], []
            for number in range(REPEATS):
                hand.append(measure(root, partial(by_hand, sandbox, root, mode, nodes), 2 * nodes))
                ours.append(measure(root, partial(by_shoal, sandbox, root, number), 2 * nodes))
            total, before, after = (typical(ours, one) - typical(hand, one) for one in ("total", "before", "after"))
            what = f"{mode}, {nodes} node{'s' if nodes > 1 else ''}"
            split = f"{before:+.2f} {after:+.2f} = {before + after:+.2f}" if mode == "torchrun" else ""
            print(f"| {what} | {typical(hand, 'total'):.2f} | {typical(ours, 'total'):.2f} | {total:+.2f} | {split} | "
                  f"{PROMISE_S} |")  # fmt: skip
    print(f"\nload {os.getloadavg()[0]:.0f}, {REPEATS} times each, by hand and shoal in turns, medians")


class Times(NamedTuple):
    """From the job's start to the last rank's first line, and to the last torchrun; a rank's age at its first line."""

    total: float
    before: float
    after: float


def typical(times: Sequence[Times], field: str) -> float:
    values: list[float] = [getattr(one, field) for one in times]
    return statistics.median(values)


def make_project(root: Path, mode: str, nodes: int = 2) -> None:
    (root / "marks").mkdir(parents=True)
    (root / "experiments/001_b").mkdir(parents=True)
    (root / "first.py").write_text(FIRST)
    (root / "python3").write_text(PYTHON.format(python=sys.executable))
    (root / "python3").chmod(0o755)
    (root / "shoal.toml").write_text(
        f'[steps.first]\ncommand = ["{root}/python3", "first.py"]\nlaunch = "{mode}"\n'
        f'env = {{ MARKS = "{root}/marks" }}\nrequest = {{ nodes = {nodes}, gpus = 2, cpus = 4, time = "5m" }}\n'
        f"[clusters.here]\nmatch = {{ host = \"*\" }}\nsetup = 'date +%s.%N > {root}/marks/start'\n"
    )


def measure(root: Path, go: Callable[[], None], ranks: int) -> Times:
    for mark in (root / "marks").iterdir():
        mark.unlink()
    go()
    wait_for(lambda: len(list((root / "marks").glob("rank-*"))) == ranks, 60)
    began = float((root / "marks/start").read_text())
    firsts = [list(map(float, path.read_text().split())) for path in (root / "marks").glob("rank-*")]
    launchers = [float(path.read_text()) for path in (root / "marks").glob("torchrun-*")]
    return Times(
        max(first for first, _ in firsts) - began, max(launchers, default=began) - began, max(age for _, age in firsts)
    )


def by_hand(sandbox: Sandbox, root: Path, mode: str, nodes: int) -> None:
    tasks, cpus = (2, 2) if mode == "srun" else (1, 4)
    script = root / "hand.sh"
    script.write_text(
        "#!/bin/bash\n"
        f"#SBATCH --nodes={nodes} --ntasks-per-node={tasks} --cpus-per-task={cpus} --gres=gpu:2 --time=5\n"
        f"date +%s.%N > {root}/marks/start\nexport MARKS={root}/marks\n"
        + BY_HAND[mode].format(python=root / "python3", nodes=nodes)
    )
    sandbox.run("sbatch", "--wait", "--output=hand.out", str(script), cwd=root, timeout_s=120)


def by_shoal(sandbox: Sandbox, root: Path, number: int) -> None:
    script = root / f"experiments/001_b/00{number}_first_0.sh"
    script.write_text('source "$(shoal shell)"\nfirst\n')
    run(["submit", str(script), "--on", "here"], root, sandbox.env())
    wait_for(lambda: not sandbox.run("squeue", "-h").stdout.strip(), 90)


def restart(folder: Path) -> None:
    root = folder / "replicas"
    (root / "experiments/001_b").mkdir(parents=True)
    shutil.copy(EXAMPLES / "diloco.py", root)
    (root / "shoal.toml").write_text(
        f'[steps.diloco]\ncommand = ["{sys.executable}", "diloco.py", "--rounds", "60", "--pause", "0.05"]\n'
        'launch = { mode = "replicas", replicas_per_node = 3 }\n'
    )
    script = root / "experiments/001_b/000_diloco_0.sh"
    script.write_text('source "$(shoal shell)"\ndiloco\n')
    going = subprocess.Popen([*SHOAL, "submit", str(script), "--on", "local"], cwd=root, env=environment(),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        wait_for(lambda: len(says(root, 0, "round")) >= 5 and len(says(root, 1, "round")) >= 5, 120)
        victim = says(root, 1, "start")[0]["pid"]
        killed = time.time()
        os.kill(victim, signal.SIGKILL)
        groups = "outputs/diloco/*/*/*/attempt-1.launch/replica-1.attempt-2.group.json"
        wait_for(lambda: list(root.glob(groups)), 60)
        again = next(root.glob(groups)).stat().st_mtime - killed
        going.wait(180)
    finally:
        going.kill()
        going.wait()
    times = [said["t"] for said in says(root, 0, "round")]
    stall = max(b - a for a, b in pairwise(times))
    print(f"\nkilled replica started again after {again:.2f} s (goal {RESTART_PROMISE_S}); the others stood still for "
          f"{stall:.2f} s (torchft's heartbeat time-out is {HEARTBEAT_S} s)")  # fmt: skip


def says(root: Path, replica: int, what: str) -> list[dict[str, Any]]:
    found = []
    for path in sorted(root.glob(f"outputs/diloco/*/*/*/attempt-1.launch/replica-{replica}.attempt-*.out")):
        lines = [line for line in path.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        found += [said for said in map(json.loads, lines) if said["what"] == what]
    return found


def run(words: list[str], root: Path, env: dict[str, str]) -> None:
    subprocess.run([*SHOAL, *words], cwd=root, env=environment(env), check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)  # fmt: skip


def environment(base: dict[str, str] | None = None) -> dict[str, str]:
    env = dict(os.environ if base is None else base)
    return {**env, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}"}


def wait_for(condition: Callable[[], object], deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"waited {deadline_s} s in vain")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
