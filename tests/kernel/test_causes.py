"""The cause of a failure in a log: real tracebacks of real programs, and the shapes that NCCL and launchers print."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from shoal.kernel.causes import KIND_TEXTS, find_cause
from shoal.kernel.log_lines import last_line

#: What a program does -> the kind and the words of the cause. Each is run, and its own output is read.
PROGRAMS = {
    "a source line that looks like an error": (
        """
        class TooSmall(Exception): pass
        def check(loss):
            if loss: raise TooSmall("loss is 3"); "CUDA out of memory", "No space left on device"
        check(3)
        """,
        "python",
        "TooSmall: loss is 3",
    ),
    "a name without Error": (
        "import subprocess\nsubprocess.run(['sleep', '9'], timeout=0.01)",
        "python",
        "subprocess.TimeoutExpired: Command '['sleep', '9']' timed out",
    ),
    "a message of several lines": (
        "raise ValueError('first line\\nsecond: line\\n  third')",
        "python",
        "ValueError: first line",
    ),
    "an error while handling one": (
        "try:\n    {}['lr']\nexcept KeyError:\n    raise RuntimeError('no learning rate')",
        "python",
        "RuntimeError: no learning rate",
    ),
    "a full disk behind another error": (
        "try:\n    open('/dev/full', 'w', buffering=1).write('w\\n')\n"
        "except OSError as error:\n    raise RuntimeError('cannot save') from error",
        "disk",
        "OSError: [Errno 28] No space left on device",
    ),
    "a group of exceptions": (
        "raise ExceptionGroup('two loaders failed', [ValueError('bad shard 7'), TypeError('other')])",
        "python",
        "ValueError: bad shard 7",
    ),
    "a worker of a pool": (
        "import concurrent.futures as f\ndef work(n): raise ValueError(f'item {n}')\n"
        "if __name__ == '__main__':\n    list(f.ProcessPoolExecutor(1).map(work, [3]))",
        "python",
        "ValueError: item 3",
    ),
    "an exception that is ignored comes after it": (
        "class Loader:\n    def __del__(self): raise OSError('too late')\n"
        "loader = Loader()\nraise ValueError('the cause')",
        "python",
        "ValueError: the cause",
    ),
    "a thread fails, then the program": (
        "import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()\nraise ValueError('main')",
        "python",
        "ValueError: main",
    ),
    "argparse": (
        "import argparse\np = argparse.ArgumentParser('train.py'); p.add_argument('--lr')\n"
        "p.parse_args(['--learning', '1'])",
        "usage",
        "train.py: error: unrecognized arguments: --learning 1",
    ),
    "argparse with sub-commands": (
        "import argparse\np = argparse.ArgumentParser('train.py'); s = p.add_subparsers(required=True, dest='what')\n"
        "s.add_parser('fit').add_argument('--lr', type=float)\np.parse_args(['fit', '--lr', 'fast'])",
        "usage",
        "train.py fit: error: argument --lr: invalid float value: 'fast'",
    ),
    "click": (
        "import click\n@click.command()\n@click.option('--lr')\ndef main(lr): pass\nmain(['--learning', '1'])",
        "usage",
        "Error: No such option",
    ),
    "absl": (
        "from absl import app\napp.run(lambda argv: None, argv=['train.py', '--learning=1'])",
        "usage",
        "Unknown command line flag 'learning'",
    ),
    "rich": (
        "import rich.traceback as r; r.install()\ndef f():\n    message = 'CUDA out of memory'\n"
        "    raise ValueError('boxed')\nf()",
        "python",
        "ValueError: boxed",
    ),
    "no syntax": ("x = (1,\ny = 'No space left on device'", "python", "SyntaxError: '(' was never closed"),
    "its own words": (
        "import sys\nsys.exit('fatal: the config has no dataset')",
        "message",
        "the config has no dataset",
    ),
    "a torn checkpoint": (
        "import torch, os\ntorch.save({'w': torch.zeros(9)}, 'm.pt')\nos.truncate('m.pt', 700)\ntorch.load('m.pt')",
        "checkpoint",
        "PytorchStreamReader failed",
    ),
    "a torn checkpoint of safetensors": (
        "from safetensors.numpy import load_file\nopen('m.safetensors', 'wb').write(b'\\xff' * 64)\n"
        "load_file('m.safetensors')",
        "checkpoint",
        "SafetensorError: ",
    ),
    "spawned ranks": (
        "import torch.multiprocessing as m\ndef main(rank):\n    if rank == 1: raise ValueError('rank one')\n"
        "    import time; time.sleep(30)\nif __name__ == '__main__': m.spawn(main, nprocs=2)",
        "python",
        "ValueError: rank one",
    ),
}


#: These import torch.
_SLOW_PROGRAMS = ("a torn checkpoint", "spawned ranks")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in _SLOW_PROGRAMS else name for name in PROGRAMS]
)
def test_the_cause_is_the_exception_s_own_line(name: str, tmp_path: Path) -> None:
    program, kind, words = PROGRAMS[name]
    (tmp_path / "train.py").write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    cause = find_cause(["step 1 loss 0.3", *done.stdout.splitlines()])
    assert cause is not None and (cause.kind, words in cause.line) == (kind, True), (cause, done.stdout)


@pytest.mark.slow
def test_torchrun_s_summary_does_not_hide_the_rank_s_own_error(tmp_path: Path) -> None:
    """Ranks write into one log, as torchrun does by itself; rank 0 fails only because rank 1 is gone."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            raise ValueError("rank one has a bad sample")
        dist.all_reduce(torch.zeros(1))
        """)
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    done = subprocess.run(
        torchrun, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300
    )
    assert "ChildFailedError" in done.stdout
    cause = find_cause(done.stdout.splitlines()[-120:])
    assert cause is not None and (cause.kind, cause.line) == ("python", "ValueError: rank one has a bad sample"), (
        done.stdout
    )


def test_tracebacks_of_ranks_that_are_interleaved_are_told_apart() -> None:
    lines = """
[rank2]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank2]:   File "train.py", line 9, in <module>
[rank0]:   File "train.py", line 12, in <module>
[rank0]:     dist.all_reduce(x)  # RuntimeError: No space left on device
[rank2]:     raise KeyError("lr")
[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:99, ncclRemoteError
[rank2]: KeyError: 'lr'
""".splitlines()
    cause = find_cause(lines)
    assert cause is not None and (cause.kind, cause.line, cause.rank) == ("python", "KeyError: 'lr'", 2)
    plain = [line.partition("]: ")[2] for line in lines]
    cause = find_cause(plain)
    assert cause is not None and cause.line == "KeyError: 'lr'", "also where no line says whose it is"


def test_the_rank_that_torchrun_names_is_believed() -> None:
    lines = """
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 12, in <module>
[rank0]: RuntimeError: stopped because of another one
[rank3]: Traceback (most recent call last):
[rank3]:   File "train.py", line 9, in <module>
[rank3]: ValueError: the sample is empty
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  time      : 2026-11-16_10:00:00
  host      : node1
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 41)
""".splitlines()
    cause = find_cause(lines)
    assert cause is not None and (cause.line, cause.rank) == ("ValueError: the sample is empty", 3)


WATCHDOG = (
    "Epoch 1:  6%|# | 32/500 [6:28<94:39][rank{rank}]:[E1116 02:07:08.408 ProcessGroupNCCL.cpp:607] [Rank {rank}] "
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=158, OpType=ALLREDUCE, NumelIn=46, NumelOut=46, "
    "Timeout(ms)=600000) ran for 600060 milliseconds before timing out."
)


def test_a_watchdog_s_time_out_is_told_with_its_rank() -> None:
    lines = [
        WATCHDOG.format(rank=3),
        "[rank3]:[E1116 02:07:08.5 ProcessGroupNCCL.cpp:630] [Rank 3] To avoid data inconsistency, we take it down.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "Exception raised from checkTimeout at ../torch/csrc/ProcessGroupNCCL.cpp:565 (most recent call):",
        "frame #0: c10::Error::Error(c10::SourceLocation) + 0x57 (0x7f in /site-packages/torch/lib/libc10.so)",
    ]
    cause = find_cause(lines)
    assert cause is not None and (cause.kind, cause.rank) == ("nccl_timeout", 3)
    assert cause.line.startswith("[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=158")


OTHERS = [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", "cuda_oom", "CUDA out of"),
    ("Error executing job with overrides: ['lr=1']\nKey 'lr' is not in struct\n    full_key: lr\n\n"
     "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.", "usage", "Key 'lr' is not"),
    ("Could not override 'model.depth'.\nTo append to your config use +model.depth=3\nKey 'depth' is not in struct",
     "usage", "depth"),
    ("In 'config': Could not find 'model/resnet51'\n\nAvailable options in 'model':\n\tresnet50", "usage", "resnet51"),
    ("Error executing job with overrides: []\nError locating target 'lib.Model', see chained exception above.\n"
     "full_key: model\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
     "message", "Error locating target 'lib.Model'"),
    ("2026-11-16 14:37:16 [rank3]: Traceback (most recent call last):\n2026-11-16 14:37:16 [rank3]:   File \"t.py\", "
     "line 2, in f\n2026-11-16 14:37:16 [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried 132.00 MiB.",
     "cuda_oom", "torch.OutOfMemoryError: CUDA out of memory"),
    ("ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 4 (pid: 24) of binary: p\n"
     "Traceback (most recent call last):\n  File \"run.py\", line 8, in <module>\n    raise ChildFailedError(\n"
     "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=======\ntrain.py FAILED",
     "crash", "(exitcode: -9) local_rank: 4"),
    ("  + Exception Group Traceback (most recent call last):\n  |   File \"demo.py\", line 9, in main\n"
     "  |     raise TwoLoaders('No space left on device', [ValueError('bad')])\n"
     "  | TwoLoaders: hello (1 sub-exception)\n  +-+---------------- 1 ----------------\n    | ValueError: bad\n"
     "    +------------------------------------", "python", "ValueError: bad"),
    ("train.sh: line 3: pyhton: command not found", "shell", "command not found"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.batch. Some of the step tasks have been OOM Killed.\n"
     "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\nBrokenPipeError: Broken pipe",
     "host_oom", "oom_kill"),
    ("shoal: the end of /o/attempt-1.launch/rank-2.out:\nshoal:   Traceback (most recent call last):\n"
     "shoal:     File \"t.py\", line 1, in <module>\nshoal:   IndexError: too far", "python", "IndexError: too far"),
    ("shoal: torchrun on 1 node\nFile \"t.py\", line 2, in f\n    x = 'No space left on device'\nNameError: name 'y'",
     "python", "NameError: name 'y'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "words"), OTHERS)
def test_what_other_tools_print_is_understood(text: str, kind: str, words: str) -> None:
    cause = find_cause(["step 1", *text.split("\n")])
    assert cause is not None and (cause.kind, words in cause.line) == (kind, True), cause


def test_the_launcher_s_exit_code_is_explained_by_its_last_sentence() -> None:
    lines = ["shoal: 2 ranks on 1 node", "shoal: rank 1 sees 1 GPU (0), and the run asked for 2 on each node", "bye"]
    cause = find_cause(lines, exit_code=78)
    assert cause is not None and (cause.kind, cause.line[:13]) == ("launch", "rank 1 sees 1")
    assert find_cause(lines, exit_code=1) is None


def test_a_log_that_tells_nothing_has_a_last_line() -> None:
    lines = ["step 1", "\x1b[31mgiving up\x1b[0m", "", "   "]
    assert find_cause(lines) is None and last_line(lines) == "giving up" and last_line([]) == ""
    assert all(KIND_TEXTS.values())


STEPS = [f"step {number}/1000 loss 0.3" for number in range(20)]
WENT_ON = [
    "WARNING: could not reach huggingface.co: Max retries exceeded with url: /api; using the local copy",
    "RuntimeError: the store says Address already in use",
    "bind: Address already in use",
    "cannot save the plot: No space left on device",
    "ls: cannot access 'old': No such file or directory",
    "Error: no cache at /x",
    "CUDA out of memory: half the batch",
]
SAID_LAST = "validation accuracy 0.12 is below --min-accuracy 0.5: stopping"


@pytest.mark.parametrize("line", WENT_ON)
def test_what_a_program_survived_is_not_its_cause(line: str) -> None:
    assert find_cause(["begin", line, *STEPS, SAID_LAST], exit_code=3) is None
    assert find_cause(["begin", line, *STEPS, SAID_LAST], exit_code=1) is None
    text = [f"evaluated route {number}" for number in range(70)]
    if not line.startswith("RuntimeError"):
        assert find_cause([line, *text, SAID_LAST], exit_code=1) is None


@pytest.mark.parametrize("line", [line for line in WENT_ON if not line.startswith("WARNING")])
def test_what_stands_near_the_end_is_its_cause(line: str) -> None:
    for code in (None, 1, 134):
        cause = find_cause([*STEPS, line, "see the manual"], exit_code=code)
        assert cause is not None and cause.line == line, code


def test_a_warning_is_no_cause_even_near_the_end() -> None:
    assert find_cause([*STEPS, WENT_ON[0], SAID_LAST], exit_code=1) is None
    assert find_cause([*STEPS, "No space left on device, continuing", SAID_LAST]) is None


HANDLED = ["Traceback (most recent call last):", '  File "t.py", line 3, in f', "    g()", "ValueError: bad sample 7"]


def test_an_exception_that_was_handled_is_not_the_cause() -> None:
    """An exception that ends Python gives it exit code 1, and is its last word."""
    last = "giving up: GPU 3 is on fire"
    for code in (7, 255):
        assert find_cause(["begin", *HANDLED, last], exit_code=code) is None
        cause = find_cause(["begin", *HANDLED], exit_code=code)
        assert cause is not None and cause.line == "ValueError: bad sample 7", "printed before sys.exit"
    assert find_cause([*HANDLED, *STEPS, last], exit_code=1) is None
    for exit_code in (None, 1, 134):
        cause = find_cause([*HANDLED, "second line of its message"], exit_code=exit_code)
        assert cause is not None and cause.line == "ValueError: bad sample 7"
    full = [*HANDLED[:-1], "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "ended"]
    cause = find_cause(full, exit_code=3)
    assert cause is not None and cause.kind == "cuda_oom"


def test_a_rank_that_failed_is_believed_though_others_print_on() -> None:
    summary = ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "train.py FAILED"]
    for end in (summary, ["srun: error: node1: task 1: Exited with exit code 7"]):
        cause = find_cause([*HANDLED, *STEPS, *end], exit_code=7)
        assert cause is not None and cause.line == "ValueError: bad sample 7"
