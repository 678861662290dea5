"""Before a submission the rules look at the plan itself, in every launch mode; no script is written for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from project import Project
from shoal.batch.sbatch_flags import parse_flags
from shoal.describe.cluster import Cluster
from shoal.doctor import rules
from shoal.doctor.finding import RULES, CheckFacts, Finding
from shoal.doctor.submit_checks import planned_job, run_findings
from shoal.job.launch.geometry import LAUNCH_MODES
from shoal.model import LaunchSettings, Request, RunSpec
from shoal.plan.sbatch_options import resolve_request

#: Modes in which a launcher starts the ranks of a node.
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "replicas")
DISTRIBUTED = "import torch\ntorch.distributed.init_process_group()\ntorch.cuda.set_device(local_rank)\n"
ALONE = "import torch\nmodel(x).sum().backward()\n"
CARELESS = """\
import signal, sys, torch, wandb
def leave(*details):
    sys.exit(1)
signal.signal(signal.SIGTERM, leave)
torch.distributed.init_process_group()
wandb.init()
DataLoader(x, num_workers=16)
"""


class Plan:
    """One run in a folder with a program, and what the rules find on it."""

    def __init__(self, folder: Path, program: str = DISTRIBUTED) -> None:
        self.folder = folder
        (folder / "train.py").write_text(program)

    def spec(
        self,
        launch: str,
        command: tuple[str, ...] = ("python", "train.py"),
        settings: LaunchSettings = LaunchSettings(),  # noqa: B008
        flags: tuple[str, ...] = (),
        args: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> RunSpec:
        return RunSpec(
            experiment="001_a", stem="000_train_0", number=0, step="train", step_kind="train", seed=0,
            command=list(command), args=list(args), cwd=str(self.folder), output="out", launch=launch,
            launch_settings=settings, flags=list(flags), env=env or {},
        )  # fmt: skip

    def findings(self, spec: RunSpec, nodes: int = 1, gpus: int = 4) -> list[Finding]:
        request = Request(nodes=nodes, gpus=gpus, cpus=16, memory="64G", time="1h")
        resolved = resolve_request(
            request, parse_flags(spec.flags), Cluster(name="c"), {}, launch=spec.launch, settings=spec.launch_settings
        )
        return run_findings(spec, resolved, str(self.folder))

    def codes(self, spec: RunSpec, nodes: int = 1, gpus: int = 4) -> dict[str, str]:
        return {one.code: one.severity for one in self.findings(spec, nodes, gpus)}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(tmp_path)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("mode", [mode for mode in LAUNCH_MODES if mode != "process"])
def test_a_correct_plan_has_no_findings_in_any_launch_mode(plan: Plan, mode: str, nodes: int) -> None:
    assert plan.findings(plan.spec(mode), nodes) == []
    assert plan.findings(plan.spec(mode, flags=("--signal=USR1@300",)), nodes) == []
    assert plan.findings(plan.spec(mode, flags=("--signal=B:USR1@300",)), nodes) == []
    assert plan.findings(plan.spec(mode, args=("--num_workers", "2", "--lr", "0.1")), nodes) == []
    assert plan.findings(plan.spec(mode, env={"MASTER_PORT": "29500", "MASTER_ADDR": "localhost"}), nodes) == []
    assert plan.findings(plan.spec(mode, command=("./prepare_and_train",)), nodes) == []


def test_a_correct_single_program_has_no_findings(plan: Plan) -> None:
    assert plan.findings(plan.spec("process"), gpus=1) == []
    assert plan.findings(plan.spec("process", command=("torchrun", "--nproc-per-node=4", "train.py"))) == []
    assert plan.findings(plan.spec("process", command=("accelerate", "launch", "--num_processes=4", "train.py"))) == []
    assert plan.findings(plan.spec("process", command=("deepspeed", "--num_gpus=4", "train.py"))) == []
    own = plan.spec("process", command=("srun", "--kill-on-bad-exit=1", "python", "train.py"))
    assert plan.findings(own, nodes=2, gpus=1) == []
    (plan.folder / "train.py").write_text("import lightning\nlightning.Trainer(devices=4)\n")
    assert plan.findings(plan.spec("process")) == []


@pytest.mark.parametrize("mode", [mode for mode in LAUNCH_MODES if mode != "process"])
def test_several_gpus_for_each_process_are_meant_so(plan: Plan, mode: str) -> None:
    assert plan.findings(plan.spec(mode, settings=LaunchSettings(processes=2, replicas_per_node=2)), gpus=8) == []


@pytest.mark.parametrize(
    "settings", [LaunchSettings(nodes_per_replica=2), LaunchSettings(replicas_per_node=2, min_replicas=5)]
)
def test_replicas_over_nodes_and_parts_of_nodes_have_no_findings(plan: Plan, settings: LaunchSettings) -> None:
    assert plan.findings(plan.spec("replicas", settings=settings), nodes=4) == []


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [
        ("accelerate", ["--num_processes={more}"], {"G09": "error"}),
        ("accelerate", ["--num_processes", "{fewer}"], {"G09": "warning"}),
        ("accelerate", ["--num_machines=4"], {"G10": "error"}),
        ("deepspeed", ["--num_gpus=8"], {"G09": "error"}),
        ("deepspeed", ["--num_gpus=1"], {"G09": "warning"}),
        ("deepspeed", ["--num_nodes", "4"], {"G10": "error"}),
    ],
)
def test_options_that_disagree_with_the_request_are_seen(
    plan: Plan, mode: str, options: list[str], expected: dict[str, str], nodes: int
) -> None:
    filled = [option.format(more=8 * nodes, fewer=nodes) for option in options]
    assert plan.codes(plan.spec(mode, settings=LaunchSettings(options=filled)), nodes) == expected


def test_deepspeed_that_calls_srun_itself_is_seen_where_it_is_in_a_step(plan: Plan) -> None:
    spec = plan.spec("deepspeed", settings=LaunchSettings(options=["--launcher=slurm"]))
    assert plan.codes(spec, nodes=2) == {"S06": "error"}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("mode", ["torchrun", "accelerate", "deepspeed"])
@pytest.mark.parametrize(
    "command", [("torchrun", "--nproc-per-node=4", "train.py"), ("accelerate", "launch", "train.py")]
)
def test_a_launcher_inside_a_launcher_is_seen(plan: Plan, mode: str, command: tuple[str, ...], nodes: int) -> None:
    (found,) = plan.findings(plan.spec(mode, command=command), nodes)
    assert (found.code, found.severity) == ("G07", "error")
    assert found.message == f"{mode} starts {command[0]} 4 times on each node, and each starts all processes there"


@pytest.mark.parametrize("mode", LAUNCHERS)
@pytest.mark.parametrize("command", [("srun", "python", "train.py"), ("bash", "-c", "srun python train.py")])
def test_srun_inside_ranks_is_seen(plan: Plan, mode: str, command: tuple[str, ...]) -> None:
    one_node = {"S06"} if mode == "replicas" else {"G07"}
    assert set(plan.codes(plan.spec(mode, command=command))) == one_node
    assert set(plan.codes(plan.spec(mode, command=command), nodes=2)) == {"S06"}


@pytest.mark.parametrize("mode", LAUNCHERS)
def test_a_script_that_calls_srun_inside_a_step_is_seen(plan: Plan, mode: str) -> None:
    (plan.folder / "inner.sh").write_text("#!/bin/bash\nsrun python train.py\n")
    assert set(plan.codes(plan.spec(mode, command=("bash", "inner.sh")), nodes=2)) == {"S06"}


@pytest.mark.parametrize("mode", LAUNCHERS)
def test_what_the_program_does_is_seen_in_every_mode(tmp_path: Path, mode: str) -> None:
    plan = Plan(tmp_path, CARELESS)
    found = plan.codes(plan.spec(mode), nodes=2)
    assert found == {"X04": "warning", "G18": "warning", "R10": "warning"}
    told = " ".join(f"{one.message}; {one.effect}" for one in plan.findings(plan.spec(mode), nodes=2))
    assert "4 x 16 = 64 loader workers share the 16 CPUs of the task" in told
    assert "8 runs appear in the tracker" in told
    assert plan.codes(plan.spec(mode, command=("python", "-m", "train")), nodes=2) == found
    assert plan.codes(plan.spec(mode, command=("uv", "run", "python", "train.py")), nodes=2) == found


@pytest.mark.parametrize("mode", ["process", "torchrun", "srun", "accelerate", "deepspeed"])
def test_one_process_that_trains_on_one_of_many_gpus_is_seen(tmp_path: Path, mode: str) -> None:
    plan = Plan(tmp_path, ALONE)
    settings = LaunchSettings() if mode == "process" else LaunchSettings(processes=1)
    assert plan.codes(plan.spec(mode, settings=settings)) == {"G21": "warning"}


@pytest.mark.parametrize(
    ("settings", "nodes", "gpus", "message"),
    [
        (LaunchSettings(), 1, 1, "the lighthouse needs all replicas"),
        (LaunchSettings(replicas_per_node=1), 1, 4, "the lighthouse needs all replicas"),
        (LaunchSettings(nodes_per_replica=2), 2, 4, "the lighthouse needs all replicas"),
        (LaunchSettings(min_replicas=4), 1, 4, "the lighthouse needs all replicas"),
        (LaunchSettings(min_replicas=1), 1, 4, "the lighthouse is content with one replica"),
        (LaunchSettings(min_replicas=1), 2, 4, "the lighthouse is content with one replica"),
    ],
)
def test_replicas_that_tolerate_nothing_or_everything_are_seen(
    plan: Plan, settings: LaunchSettings, nodes: int, gpus: int, message: str
) -> None:
    (found,) = plan.findings(plan.spec("replicas", settings=settings), nodes, gpus)
    assert (found.code, found.severity, found.message) == ("R12", "warning", message)


@pytest.mark.parametrize("mode", [mode for mode in LAUNCH_MODES if mode != "process"])
def test_the_port_is_told_by_the_launch_whatever_the_program_looks_for(tmp_path: Path, mode: str) -> None:
    plan = Plan(tmp_path, DISTRIBUTED + "port = find_free_port()\n")
    assert plan.findings(plan.spec(mode), nodes=2) == []


def test_a_variable_of_the_run_or_of_its_replicas_is_seen(plan: Plan) -> None:
    port = {"TORCHFT_MANAGER_PORT": "29512"}
    assert set(plan.codes(plan.spec("replicas", env=port))) == {"N08"}
    assert set(plan.codes(plan.spec("replicas", settings=LaunchSettings(env=port)))) == {"N08"}
    assert set(plan.codes(plan.spec("process", env={"MASTER_PORT": "29500"}), gpus=1)) == {"N01"}
    assert set(plan.codes(plan.spec("torchrun", env={"OMP_NUM_THREADS": "64"}))) == {"X03"}


def test_the_request_is_looked_at_in_the_words_of_the_person(plan: Plan) -> None:
    for mode in LAUNCH_MODES:
        found = plan.codes(plan.spec(mode, flags=("--time=24", "--mem=50")), gpus=1)
        assert {"D10", "D14"} <= set(found), mode


@pytest.mark.parametrize("mode", LAUNCH_MODES)
def test_rules_on_the_text_of_a_script_are_not_asked(plan: Plan, mode: str) -> None:
    strange = ("| tee log", "a\r\n#SBATCH --time=1\nexit 0\n", "&", "'", "$SLURM_PROCID", "sbatch", "~", "\\")
    gpus = 2 if mode == "replicas" else 1
    assert plan.findings(plan.spec(mode, args=strange), gpus=gpus) == []
    assert plan.findings(plan.spec(mode, command=("bash", "job.sh")), gpus=gpus) == []


def test_a_plan_has_no_script_and_no_edits(plan: Plan) -> None:
    spec = plan.spec("accelerate", settings=LaunchSettings(options=["--num_machines=4"]), flags=("--time=24",))
    resolved = resolve_request(
        Request(nodes=2, gpus=4), parse_flags(spec.flags), Cluster(name="c"), {}, launch="accelerate"
    )  # fmt: skip
    job = planned_job(spec, resolved, plan.folder)
    assert (job.kind, CheckFacts(job, None).script) == ("plan", None)  # type: ignore[arg-type]
    assert all(not one.edits for one in run_findings(spec, resolved, str(plan.folder)))


_WORDS = st.sampled_from(
    ["python", "train.py", "-m", "torchrun", "accelerate", "launch", "deepspeed", "srun", "bash", "-c", "srun x",
     "exec", "conda", "run", "-n", "--nproc-per-node=4", "--num_processes", "8", "env", "A=1", "", "'", "$X",
     "a b", "\n", "--"]
)  # fmt: skip


@given(
    mode=st.sampled_from(LAUNCH_MODES),
    words=st.lists(_WORDS, min_size=1, max_size=6),
    options=st.lists(_WORDS, max_size=3),
    nodes=st.integers(1, 2),
    gpus=st.sampled_from([0, 1, 4]),
)
def test_no_words_break_a_rule(mode: str, words: list[str], options: list[str], nodes: int, gpus: int) -> None:
    rules.load_rules()
    spec = RunSpec(
        experiment="e", stem="s", number=0, step="t", step_kind="t", seed=0, command=words, cwd="/nowhere", output="o",
        launch=mode, launch_settings=LaunchSettings(options=options),
    )  # fmt: skip
    request = Request(nodes=nodes, gpus=gpus, cpus=8)
    resolved = resolve_request(request, parse_flags([]), Cluster(name="c"), {}, launch=mode)
    assert all(finding.code in RULES and finding.line >= 0 for finding in run_findings(spec, resolved, "/nowhere"))


STEPS = """
[clusters.c]
match = {{ host = "nowhere" }}
gpus_per_node = 8
[steps.big]
command = ["python", "program.py"]
output = "big"
request = {{ gpus = 4, nodes = {nodes} }}
launch = {launch}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launch", "nodes", "code", "words"),
    [
        (
            '{ mode = "accelerate", options = ["--num_processes=8"] }',
            1,
            3,
            "--num_processes is 8, on a node with 4 GPUs",
        ),
        ('{ mode = "deepspeed", options = ["--num_nodes=4"] }', 2, 3, "deepspeed expects 4 nodes, and the job has 2"),
        ('{ mode = "replicas", replicas_per_node = 1 }', 1, 0, "R12: the lighthouse needs all replicas"),
        ('"accelerate"', 2, 0, ""),
        ('"deepspeed"', 2, 0, ""),
        ('"replicas"', 2, 0, ""),
    ],
)
def test_submit_tells_it(tmp_path: Path, launch: str, nodes: int, code: int, words: str) -> None:
    project = Project(tmp_path, toml=STEPS.format(launch=launch, nodes=nodes))
    project.script("001_a/000_big_0.sh", "big")
    done = project.shoal("submit", "experiments/001_a", "--on", "c", "--dry-run", code=code)
    assert words in done.out + done.err
    assert words or not any(f"{code}: " in done.out + done.err for code in RULES)
