"""For each rule of the doctor: a script in which it must find something, and one that it must leave alone.

A pair is (code, bad, good); each side is a `Case`: directives, body, and where the rule needs them the Python program
beside the script, a file system and a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from shoal.clusters.facts import Association, ClusterFacts, NodeKind, Partition, Qos, Reservation

RENDEZVOUS = "--rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$HEAD:23456"
GPU = "--gres=gpu:4\n--cpus-per-task=32\n--mem=100G\n--time=1-00:00:00\n--nodes=1"
LIGHTNING = "import lightning as L\ntrainer = L.Trainer(devices=4, num_nodes=1, strategy='ddp')\n"
TRAINS = "import torch\nfor batch in loader:\n    model(batch).sum().backward()\n    optimizer.step()\n"
DDP = "import os, torch\nlocal_rank = int(os.environ['SLURM_LOCALID'])\ntorch.cuda.set_device(local_rank)\n"

CLUSTER = ClusterFacts(
    version=(22, 5),
    partitions=(
        Partition("main", True, 3 * 86400, default_time_s=3600, total_nodes=4, def_mem_per_cpu_mb=250),
        Partition("low", False, 12 * 3600, max_nodes=2, total_nodes=4, def_mem_per_cpu_mb=250, preempts=True),
        Partition("closed", is_up=False, total_nodes=4, allow_accounts=("other",)),
    ),
    node_kinds=(
        NodeKind("main", 16, 4000, 4, ("a100",), ("ib",), 4),
        NodeKind("low", 16, 4000, 4, ("a100",), (), 4),
        NodeKind("closed", 64, 64000, 8, ("h100",), (), 4),
    ),
    max_array_size=1001,
    kill_wait_s=30,
    associations=(Association("lab", qos=("normal", "high")), Association("small")),
    default_account="lab",
    qos_limits=(Qos("normal"), Qos("high", 86400, 8)),
    read_at_s=1_000_000.0,
)
MAINTENANCE = CLUSTER._replace(reservations=(Reservation("update", 1_007_200.0, 1_050_000.0, True),))


class Case(NamedTuple):
    header: str = ""
    body: str = "srun python train.py\n"
    program: str | None = None
    files: Mapping[str, str] = MappingProxyType({})
    folders: tuple[str, ...] = ("logs",)
    cluster: ClusterFacts | None = None
    refusal: str | None = None
    nearest: str | None = None
    raw: bytes | None = None
    inputs: tuple[int | None, float | None, int | None] = (None, None, None)

    @property
    def data(self) -> bytes:
        if self.raw is not None:
            return self.raw
        lines = "".join(f"#SBATCH {line}\n" for line in self.header.splitlines() if line)
        return f"#!/bin/bash\n{lines}\n{self.body}".encode()


class Pair(NamedTuple):
    code: str
    bad: Case
    good: Case


def _torchrun(
    *, nodes: int = 1, gpus: int = 4, tasks: int = 1, words: str = "--nproc-per-node=4", srun: str = "srun "
) -> Case:
    header = f"--nodes={nodes}\n--ntasks-per-node={tasks}\n--gpus-per-node={gpus}\n--cpus-per-task=32\n--mem=100G"
    return Case(header, f"{srun}torchrun {words} train.py\n")


PAIRS: list[Pair] = [
    Pair(
        "D01",
        Case("--time=1:00:00", "set -e\n#SBATCH --gres=gpu:2\npython train.py\n"),
        Case(GPU, "set -e\npython train.py\n"),
    ),
    Pair(
        "D02",
        Case("--time=1:00:00", raw=b"#!/bin/bash\n#sbatch --nodes=1\n  #SBATCH --gres=gpu:1\npython train.py\n"),
        Case(
            "--nodes=1",
            raw=b"#!/bin/bash\n#SBATCH --nodes=1\n##SBATCH --nodes=2\n# SBATCH reads this\npython train.py\n",
        ),
    ),
    Pair("D03", Case(raw=b"#!/bin/bash\r\n#SBATCH --time=1:00:00\r\npython train.py\r\n"), Case(GPU)),
    Pair("D04", Case(raw=b"\n#!/bin/bash\n#SBATCH --time=1:00:00\npython train.py\n"), Case(GPU)),
    Pair("D05", Case("--output=$HOME/logs/%j.out\n--time=$LIMIT"), Case("--output=logs/%x-%j.out\n--time=1:00:00")),
    Pair("D06", Case("--output=~/logs/%j.out"), Case("--output=logs/%j.out")),
    Pair("D07", Case("--output=missing/%j.out"), Case("--output=logs/%j.out")),
    Pair("D08", Case("", "sbatch train.sh --gres=gpu:4\n"), Case("", "sbatch --gres=gpu:4 train.sh --lr 0.1\n")),
    Pair("D09", Case("--ntasks = 2\n\u2013\u2013nodes=1"), Case("--ntasks=2\n--nodes=1")),
    Pair("D10", Case("--time=24"), Case("--time=24:00:00")),
    Pair("D11", Case("--time=4-00:00:00", cluster=CLUSTER), Case("--time=2-00:00:00", cluster=CLUSTER)),
    Pair("D12", Case("--gres=gpu:A100:1", cluster=CLUSTER), Case("--gres=gpu:a100:1", cluster=CLUSTER)),
    Pair(
        "D13",
        Case("--gres=gpu:8\n--partition=main", cluster=CLUSTER),
        Case("--gres=gpu:4\n--partition=main", cluster=CLUSTER),
    ),
    Pair("D14", Case("--mem=64"), Case("--mem=64G")),
    Pair("D15", Case("--mem=4G\n--mem-per-cpu=2G"), Case("--mem-per-cpu=2G")),
    Pair("D16", Case("--gres=gpu:1", cluster=CLUSTER), Case("--gres=gpu:1\n--mem=3G", cluster=CLUSTER)),
    Pair("D17", Case("--gres=gpu:1\n--mem=0"), Case("--gres=gpu:8\n--mem=0\n--exclusive")),
    Pair("D18", Case("--nodes=1"), Case("--nodes=1\n--time=1:00:00")),
    Pair("D19", Case("--array=0-9\n--output=logs/train.out"), Case("--array=0-9\n--output=logs/train_%A_%a.out")),
    Pair("D20", Case("--array=0-99"), Case("--array=0-99%8")),
    Pair("D21", Case("--array=0-4999", cluster=CLUSTER), Case("--array=0-999", cluster=CLUSTER)),
    Pair("D22", Case("--dependency=afterok:123"), Case("--dependency=afterok:123\n--kill-on-invalid-dep=yes")),
    Pair("D23", Case("--gres=gpu:1# one is enough"), Case("--gres=gpu:1 # one is enough")),
    Pair(
        "D24",
        Case("", "bash job.sh\n", files={"job.sh": "#!/bin/bash\n#SBATCH --gres=gpu:1\npython a.py\n"}),
        Case("", "bash tools.sh\n", files={"tools.sh": "#!/bin/bash\necho tools\n"}),
    ),
    Pair("D25", Case("--workdir=/tmp\n--ntask=2"), Case("--chdir=/tmp\n--ntasks=2\n--container-image=x.sqsh")),
    Pair("D26", Case("--time=1:00:00\n--time=2:00:00"), Case("--time=1:00:00\n--time=1:00:00")),
    Pair("D27", Case("--account=nobody", cluster=CLUSTER), Case("--account=small\n--qos=high", cluster=CLUSTER)),
    Pair("D28", Case("--time=12:00:00", cluster=MAINTENANCE), Case("--time=01:00:00", cluster=MAINTENANCE)),
    Pair(
        "D29",
        Case("--time=1:00:00", cluster=CLUSTER, refusal="Invalid feature", nearest="--constraint="),
        Case(GPU, cluster=CLUSTER),
    ),
    Pair("D30", Case(raw="#!/bin/bash\necho\n".encode("utf-16")), Case(GPU)),
    Pair("D31", Case("--job-name={{ name }}"), Case("--job-name=name")),
    *(
        Pair("D35", Case(GPU, f"{bad}\npython train.py\n"), Case(GPU, f"{good}\npython train.py\n"))
        for bad, good in (
            ("echo 'never closed", "echo 'closed'"),
            ("export HF_TOKEN=<your token>", "export HF_TOKEN=$(cat ~/.token)"),
            ("conda activate <env>   # yours", "sort <names >sorted   # yours"),
            ("if [ -d data ]; then echo yes", "if [ -d data ]; then echo yes; fi"),
            ("echo a; done", "for i in 1 2; do echo $i; done"),
            (
                "done",
                "{% for name in names %}\npython {{ name }}.py\n{% endfor %}\ndone",
            ),  # a template is filled in first
            ("esac", "case $1 in a) echo a;; (b|c) echo b;; esac"),
            ("for i in 1 2; do echo $i; fi", "while read -r x; do echo $x; done < <(ls)"),
            ("ls > | cat", "ls > >(cat); f() ( echo ); g() { echo; }; (( a = (1 + 2) * (3 + 4) )); [[ a < b ]]"),
        )
    ),
    Pair(
        "D32",
        Case("--qos=high\n--time=2-00:00:00", cluster=CLUSTER),
        Case("--qos=high\n--time=1-00:00:00", cluster=CLUSTER),
    ),
    Pair(
        "G01",
        Case("--gres=gpu:1\n--ntasks-per-node=8\n--nodes=1"),
        Case("--gres=gpu:8\n--ntasks-per-node=8\n--nodes=1"),
    ),
    Pair(
        "G02",
        Case(f"{GPU}\n--ntasks=1", "python train.py\n", LIGHTNING),
        Case(f"{GPU}\n--ntasks-per-node=4", "srun python train.py\n", LIGHTNING),
    ),
    Pair("G03", Case("--nodes=2\n--ntasks=1\n--ntasks-per-node=4"), Case("--nodes=2\n--ntasks=8\n--ntasks-per-node=4")),
    Pair("G04", Case("--nodes=2\n--ntasks=8\n--gres=gpu:4"), Case("--nodes=2\n--ntasks-per-node=4\n--gres=gpu:4")),
    Pair(
        "G05",
        Case("--nodes=2\n--gpus=8\n--ntasks-per-node=4"),
        Case("--nodes=2\n--gpus-per-node=4\n--ntasks-per-node=4"),
    ),
    Pair("G06", Case("--ntasks=4\n--gres=gpu:4"), Case("--ntasks=4\n--gres=gpu:4\n--nodes=1")),
    Pair("G07", _torchrun(tasks=4), _torchrun(tasks=1)),
    Pair(
        "G08",
        Case("--nodes=1\n--ntasks-per-node=4\n--gpus-per-task=1", program=DDP),
        Case("--nodes=1\n--ntasks-per-node=4\n--gpus-per-node=4", program=DDP),
    ),
    Pair("G09", _torchrun(words="--nproc-per-node=8"), _torchrun(words="--nproc-per-node=$SLURM_GPUS_ON_NODE")),
    Pair(
        "G10",
        _torchrun(nodes=2, words=f"--nnodes=4 --nproc-per-node=4 {RENDEZVOUS}"),
        _torchrun(nodes=2, words=f"--nnodes=$SLURM_NNODES --nproc-per-node=4 {RENDEZVOUS}"),
    ),
    Pair(
        "G11",
        Case("--nodes=1\n--ntasks-per-node=2\n--gres=gpu:2", program=LIGHTNING),
        Case("--nodes=1\n--ntasks-per-node=4\n--gres=gpu:4", program=LIGHTNING),
    ),
    Pair(
        "G12",
        _torchrun(nodes=2, words=f"--nnodes=2 --nproc-per-node=4 {RENDEZVOUS}", srun=""),
        _torchrun(nodes=2, words=f"--nnodes=2 --nproc-per-node=4 {RENDEZVOUS}"),
    ),
    Pair(
        "G13",
        Case("--nodes=1\n--ntasks-per-node=4\n--gres=gpu:4", "python train.py\n", LIGHTNING),
        Case("--nodes=1\n--ntasks-per-node=4\n--gres=gpu:4", "srun python train.py\n", LIGHTNING),
    ),
    Pair(
        "G14",
        Case("--partition=main\n--time=1:00:00", "torchrun --nproc-per-node=4 train.py\n", cluster=CLUSTER),
        Case("--partition=main\n--gres=gpu:4", "torchrun --nproc-per-node=4 train.py\n", cluster=CLUSTER),
    ),
    Pair("G15", Case("--gres=gpu:4\n--nodes=1"), Case("--gres=gpu:4\n--nodes=1\n--cpus-per-task=32")),
    Pair(
        "G16",
        Case(f"{GPU}\n--ntasks-per-node=4"),
        Case(f"{GPU}\n--ntasks-per-node=4", "srun -c $SLURM_CPUS_PER_TASK python train.py\n"),
    ),
    Pair(
        "G17",
        Case("--gres=gpu:1\n--cpus-per-task=12", cluster=CLUSTER),
        Case("--gres=gpu:1\n--cpus-per-task=4", cluster=CLUSTER),
    ),
    Pair(
        "G18",
        Case("--gres=gpu:1\n--cpus-per-task=4", "python train.py --num_workers 16\n"),
        Case("--gres=gpu:1\n--cpus-per-task=16", "python train.py --num_workers 8\n"),
    ),
    Pair(
        "G19",
        Case(GPU, "python train.py\n", "import os\nworkers = os.cpu_count()\n"),
        Case(GPU, "python train.py\n", "import os\nworkers = len(os.sched_getaffinity(0))\n"),
    ),
    Pair(
        "G21",
        Case(GPU, "python train.py\n", TRAINS),
        Case(GPU, "python train.py\n", TRAINS + "model = torch.nn.DataParallel(model)\n"),
    ),
    Pair(
        "G20",
        Case("--nodes=2\n--gpus-per-node=4", "export NUM_REPLICA_GROUPS=3\nsrun python train.py\n"),
        Case("--nodes=2\n--gpus-per-node=4", "export NUM_REPLICA_GROUPS=4\nsrun python train.py\n"),
    ),
    Pair(
        "S01",
        Case(GPU, "python train.py\necho finished\n"),
        Case(GPU, "set -euo pipefail\npython train.py\necho finished\n"),
    ),
    *(
        Pair("S01", Case(GPU, f"{bad}\n"), Case(GPU, f"{good}\n"))
        for bad, good in (
            # Trainings in a row, and in a loop.
            (
                "srun python -m lab.fit a\nsrun python -m lab.fit b",
                "set -e\nsrun python -m lab.fit a\nsrun python -m lab.fit b",
            ),
            ("python train_a.py\npython train_b.py", "python prepare.py\npython train_b.py"),
            ("for s in 1 2; do\n  python fit.py $s\ndone", "for s in 1 2; do\n  python fit.py $s || exit 1\ndone"),
            (
                "for s in 1 2; do python fit.py $s; done",
                "for s in 1 2; do python fit.py $s || failed=1; done\nexit ${failed:-0}",
            ),
            (
                "srun pip install x\npython fit.py\npython fit.py",
                "srun pip install x\nsrun pip install y\nsrun python fit.py",
            ),
            # wait without a process returns 0.
            ("python a.py &\npython b.py &\nwait", "python a.py &\nfirst=$!\npython b.py || exit 1\nwait $first"),
            ("set -e\npython a.py &\npython b.py &\nwait", "set -e\npython server.py &\npython train.py\nwait"),
            # What stands behind || succeeds.
            ("srun python fit.py || true", "srun python fit.py || exit 1"),
            ("python train.py || echo failed", "python train.py || { echo failed; exit 1; }"),
        )
    ),
    Pair("S02", Case(GPU, "python train.py | tee log\n"), Case(GPU, "set -o pipefail\npython train.py | tee log\n")),
    Pair("S03", Case(GPU, "python train.py\nexit 0\n"), Case(GPU, "python train.py\nexit $?\n")),
    Pair(
        "S04",
        Case(GPU, "for i in 0 1; do\n  srun --exact -n1 --gres=gpu:1 python train.py --seed $i &\ndone\n"),
        Case(GPU, "for i in 0 1; do\n  srun --exact -n1 --gres=gpu:1 python train.py --seed $i &\ndone\nwait\n"),
    ),
    Pair(
        "S05",
        Case(GPU, "srun -n1 python a.py &\nsrun -n1 python b.py &\nwait\n"),
        Case(
            GPU,
            "srun --exact -n1 --gres=gpu:1 python a.py &\nsrun --exact -n1 --gres=gpu:1 python b.py &\nwait\n",
        ),
    ),
    Pair(
        "S06",
        Case(GPU, "srun bash inner.sh\n", files={"inner.sh": "module load x\nsrun python train.py\n"}),
        Case(GPU, "srun bash inner.sh\n", files={"inner.sh": "# srun starts this\npython train.py\n"}),
    ),
    Pair(
        "S07",
        Case(GPU, "conda activate env\npython train.py\n"),
        Case(GPU, 'eval "$(conda shell.bash hook)"\nconda activate env\npython train.py\n'),
    ),
    Pair(
        "S08",
        Case(f"{GPU}\n--export=NONE", "module load cuda\npython train.py\n"),
        Case(GPU, "module load cuda\npython train.py\n"),
    ),
    Pair("S09", Case("--export=NONE"), Case("--export=NONE", "srun --export=ALL python train.py\n")),
    Pair("S10", Case("--export=FOO=1"), Case("--export=ALL,FOO=1")),
    Pair(
        "S11",
        Case(GPU, 'cd "$(dirname "$0")"\npython train.py\n'),
        Case(GPU, 'cd "$SLURM_SUBMIT_DIR"\npython train.py\n'),
    ),
    Pair(
        "S12",
        Case(GPU, "python train.py && sbatch next.sh\n"),
        Case(GPU, "unset SLURM_MEM_PER_NODE\npython train.py && sbatch next.sh\n"),
    ),
    Pair(
        "S14",
        Case("--nodes=2", "srun torchrun --node_rank $SLURM_NODEID train.py\n"),
        Case("--nodes=2", "srun bash -c 'torchrun --node_rank $SLURM_NODEID train.py'\n"),
    ),
    Pair(
        "S15",
        Case("--nodes=2", "srun -w a torchrun --node_rank=0 train.py\nsrun -w b torchrun --node_rank=1 train.py\n"),
        Case(
            "--nodes=2",
            "srun -w a torchrun --node_rank=0 train.py &\nsrun -w b torchrun --node_rank=1 train.py &\nwait\n",
        ),
    ),
    Pair(
        "S15",
        Case("--nodes=2", "for r in 0 1; do\n  srun -w ${hosts[$r]} torchrun --node_rank=$r train.py\ndone\n"),
        Case("--nodes=2", "for r in 0 1; do\n  srun -w ${hosts[$r]} torchrun --node_rank=$r train.py &\ndone\nwait\n"),
    ),
    Pair(
        "S07",
        Case(GPU, "module load Python/3.11.3-GCCcore-12.3.0\nconda activate env\npython train.py\n"),
        Case(GPU, "module load python/3.11\nconda activate env\npython train.py\n"),
    ),
    Pair(
        "S18",
        Case(GPU, "srun --jobid=181234 python train.py\n"),
        Case(GPU, "srun --jobid=$SLURM_JOB_ID python train.py\n"),
    ),
    *(
        Pair("S19", Case(GPU, f"{bad}\npython train.py\n"), Case(GPU, f"{good}\npython train.py\n"))
        for bad, good in (
            ("conda install pandas", "conda install -y pandas"),
            ("mamba create -n fit python=3.11", "mamba create --yes -n fit python=3.11"),
            ("pip uninstall torch", "yes | pip uninstall torch"),
            ("conda install -c conda-forge lightgbm", "export CONDA_ALWAYS_YES=1\nconda install lightgbm"),
            ("sudo apt-get install git", "sudo apt-get install -qqy git; conda env create -f env.yml"),
        )
    ),
    *(
        Pair("S20", Case(GPU, bad), Case(GPU, good))
        for bad, good in (
            ("python fit.py --lr 1 \\\n  --seed 2\n  --epochs 3\n", "python fit.py --lr 1 \\\n  --epochs 3\n"),
            ("python fit.py \\ \n  --seed 2\n", "python fit.py \\\n  # a comment ends the command\necho\n"),
            ("singularity run x.sif\n  train.py --lr 1\n", "singularity run x.sif \\\n  train.py --lr 1\n"),
        )
    ),
    Pair(
        "S21",
        Case(GPU, 'files=("a.json", "b.json")\npython train.py ${files[0]}\n'),
        Case(GPU, 'files=("a.json" "b.json")\nrange=(1,2 3,4)\npython train.py ${files[0]}\n'),
    ),
    Pair("D02", Case("", "", raw=b"#!/bin/bash\n#SBATCh --mem=4G\n#SBATCH -n 1\n"), Case("--mem=4G")),
    Pair(
        "D02",
        Case(raw=b"#!/bin/bash\n#SBTACH -n 2\necho\n"),
        Case(raw=b"#!/bin/bash\na=1\n##SBATCH -n 2\n#SBATCH -n 3\n"),
    ),
    Pair(
        "S01",
        Case(GPU, "python train.py\necho over\nrc=$?\nexit $rc\n"),
        Case(GPU, "python train.py\nrc=$?\necho over\nexit $rc\n"),
    ),
    Pair(
        "S11",
        Case(GPU, 'cd "$(dirname "$0")"\npython train.py\n'),
        Case(GPU, 'here=$(dirname "$0")\nif [[ $here == *"/spool/"* ]]; then here=~/code; fi\npython train.py\n'),
    ),
    Pair("D36", Case("--nodes=1\n-w n1,n2,n3"), Case("--nodes=3\n-w n1,n2,n3")),
    *(
        Pair("S02", Case(GPU, f"{bad}\n"), Case(GPU, f"{good}\n"))
        for bad, good in (
            ('cmd="python fit.py | tee log"\neval $cmd', 'cmd="python fit.py > log"\neval $cmd'),
            ("srun bash clean.sh; python fit.py | tee log", "srun bash clean.sh; python list.py | sort"),
        )
    ),
    Pair(
        "S01",
        Case(GPU, "module load x\n./run_all.sh\ndeactivate\n"),
        Case(GPU, "srun bash clean.sh a\nsrun bash clean.sh b\n"),
    ),
    Pair(
        "S03",
        Case(GPU, 'python train.py\nrc=$?\necho "ended with $rc"\nexit 0\n'),
        Case(GPU, "python train.py\nrc=$?\nif [ $rc != 0 ]; then exit $rc; fi\nexit 0\n"),
    ),
    Pair(
        "S04",
        Case(GPU, "python fit.py a | tee a.log &\npython fit.py b | tee b.log\n"),
        Case(GPU, "python fit.py a | tee a.log &\npython fit.py b | tee b.log &\nwait\n"),
    ),
    Pair(
        "G01",
        Case("--nodes=1\n--ntasks-per-node=4\n--gres=gpu:3090:2", "srun tools/env.sh python train.py\n"),
        Case("--nodes=1\n--ntasks-per-node=2\n--gres=gpu:2080ti:2", "srun tools/env.sh python train.py\n"),
    ),
    *(
        Pair("X01", Case("--gres=gpu:1", f"{bad} python fit.py\n"), Case("--gres=gpu:1", f"{good} python fit.py\n"))
        for bad, good in (
            ('gpu="6,7"\nCUDA_VISIBLE_DEVICES=$gpu', 'gpu="$SLURM_JOB_GPUS"\nCUDA_VISIBLE_DEVICES=$gpu'),
            ("CUDA_VISIBLE_DEVICES=$(nvidia-smi | pick)", "N=$(nvidia-smi | wc -l)"),
        )
    ),
    *(
        Pair(code, Case(header, f"{bad}\n"), Case(header, f"{good}\n"))
        for code, header, bad, good in (
            ("R07", "--requeue", "python main.py --epochs 9", "python main.py --epochs 9 --resume auto"),
            ("N01", "--gres=gpu:2", "srun python fit.py --distributed-port 3154", "srun python fit.py --port-name a"),
        )
    ),
    Pair("S16", Case(GPU, "source ~/.bashrc\npython train.py\n"), Case(GPU, "source env.sh\npython train.py\n")),
    Pair(
        "N01",
        Case(GPU, "export MASTER_PORT=29500\nsrun python train.py\n"),
        Case(GPU, "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\nsrun python train.py\n"),
    ),
    *(
        Pair("N01", Case("--gres=gpu:2", f"{bad}\n"), Case("--gres=gpu:2", f"{good}\n"))
        for bad, good in (
            (
                "port=29511\ntorchrun --rdzv-endpoint $host:$port train.py",
                "port=$((20000 + SLURM_JOB_ID % 10000))\ntorchrun --rdzv-endpoint $host:$port train.py",
            ),
            (
                "url=tcp://\nurl+=$host\nurl+=:21234\nsrun python train.py --dist_url $url",
                "srun python train.py --dist_url env://",
            ),
            ("srun python train.py --dist-url=tcp://node1:21234", "srun python train.py --init_method file:///tmp/x"),
            (
                'L="accelerate launch \\\n  --main_process_port 29522"\nC="$L train.py"\n$C',
                'L="accelerate launch"\n$L train.py',
            ),
            (
                "ARGS=(--nproc-per-node 2)\nARGS+=(--master-port 29533)\ntorchrun ${ARGS[@]} train.py",
                "torchrun --standalone train.py",
            ),
        )
    ),
    Pair("N01", Case("--gres=gpu:4\n--nodes=1", "export MASTER_PORT=29500\n"), Case("--gres=gpu:4", "true\n")),
    Pair(
        "N02",
        Case(GPU, "export MASTER_PORT=$(shuf -i 30000-60000 -n 1)\nsrun python train.py\n"),
        Case(GPU, "export MASTER_PORT=$(shuf -i 10000-30000 -n 1)\nsrun python train.py\n"),
    ),
    Pair(
        "N03",
        Case("--nodes=2", "export MASTER_ADDR=localhost\nsrun python train.py\n"),
        Case("--nodes=1", "export MASTER_ADDR=localhost\nsrun python train.py\n"),
    ),
    Pair(
        "N04",
        Case("--nodes=2", "srun bash -c 'MASTER_PORT=$((10000 + RANDOM % 9999)) python train.py'\n"),
        Case("--nodes=2", "export MASTER_PORT=$((10000 + RANDOM % 9999))\nsrun python train.py\n"),
    ),
    Pair(
        "N05",
        Case("--nodes=2", "export MASTER_ADDR=$(hostname -i)\nsrun python train.py\n"),
        Case(
            "--nodes=2",
            'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\nsrun python train.py\n',
        ),
    ),
    Pair(
        "N06",
        Case(GPU, "export NCCL_SOCKET_IFNAME=ib0\nsrun python train.py\n"),
        Case(GPU, "export NCCL_SOCKET_IFNAME=^lo,docker0\nsrun python train.py\n"),
    ),
    Pair(
        "N07",
        Case(GPU, "export NCCL_P2P_DISABLE=1\npython train.py\n"),
        Case(GPU, "export NCCL_DEBUG=WARN\npython train.py\n"),
    ),
    Pair(
        "N08",
        Case(GPU, "export TORCHFT_MANAGER_PORT=29512\nsrun python train.py\n"),
        Case(GPU, "unset TORCHFT_MANAGER_PORT\nsrun python train.py\n"),
    ),
    Pair(
        "N10",
        Case("--gres=gpu:1", "pip install -r requirements.txt\nsrun python train.py\n"),
        Case(
            "--gres=gpu:1", "pip install --no-index wheels/*.whl\ncurl -s localhost:8000/health\nsrun python train.py\n"
        ),
    ),
    Pair(
        "N11",
        Case("--nodes=2\n--gres=gpu:4", "deepspeed --hostfile hosts train.py\n"),
        Case("--nodes=2\n--gres=gpu:4", "deepspeed --launcher slurm train.py\n"),
    ),
    Pair(
        "N12",
        Case(GPU, "ray start --head --port=6379\npython tune.py\n"),
        Case(GPU, "ray start --head --port=$PORT --temp-dir=/tmp/ray-$SLURM_JOB_ID\npython tune.py\n"),
    ),
    Pair(
        "X01",
        Case(GPU, "export CUDA_VISIBLE_DEVICES=0,1,2,3\npython train.py\n"),
        Case(GPU, "echo $CUDA_VISIBLE_DEVICES\npython train.py\n"),
    ),
    Pair(
        "X02",
        Case(GPU, "export SINGULARITYENV_CUDA_VISIBLE_DEVICES=2,3\nsingularity exec --nv img.sif python train.py\n"),
        Case(GPU, "singularity exec --nv img.sif python train.py\n"),
    ),
    Pair(
        "X03",
        Case("--cpus-per-task=4", "export OMP_NUM_THREADS=32\npython train.py\n"),
        Case("--cpus-per-task=4", "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\npython train.py\n"),
    ),
    Pair(
        "X04",
        Case("--nodes=1\n--ntasks-per-node=4", program="import wandb\nwandb.init(project='x')\n"),
        Case(
            "--nodes=1\n--ntasks-per-node=4",
            program="import os, wandb\nif os.environ['RANK'] == '0':\n    wandb.init()\n",
        ),
    ),
    Pair("X05", Case(f"{GPU}\n--ntasks-per-node=4", inputs=(22, 1e-4, None)), Case(f"{GPU}\n--ntasks-per-node=4")),
    Pair(
        "X06",
        Case("--job-name=interactive\n--ntasks-per-node=4\n--nodes=1", program=LIGHTNING),
        Case("--job-name=train\n--ntasks-per-node=4\n--nodes=1", program=LIGHTNING),
    ),
    Pair(
        "X07",
        Case(GPU, "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567\npython train.py\n"),
        Case(
            GPU,
            "export WANDB_API_KEY=$(cat ~/.config/wandb_key)\nexport TOKENIZERS_PARALLELISM=false\npython train.py\n",
        ),
    ),
    Pair(
        "X08",
        Case(GPU, "python -m torch.distributed.launch --nproc_per_node=4 train.py\n"),
        Case(GPU, "torchrun --nproc_per_node=4 train.py\n"),
    ),
    Pair(
        "R01",
        Case(GPU, "python train.py\n", "import signal\nsignal.signal(signal.SIGTERM, print)\n"),
        Case(GPU, "exec python train.py\n", "import signal\nsignal.signal(signal.SIGTERM, print)\n"),
    ),
    Pair(
        "R02",
        Case("--signal=USR1@300\n--nodes=1", "srun torchrun --nproc-per-node=4 train.py\n"),
        Case(
            "--signal=USR1@300\n--nodes=1",
            "srun torchrun --signals-to-handle=SIGTERM,SIGUSR1 --nproc-per-node=4 train.py\n",
        ),
    ),
    Pair(
        "R03",
        Case("--signal=B:USR1@300", "trap 'touch stop' USR1\nsrun python train.py\n"),
        Case(
            "--signal=B:USR1@300", "trap 'kill -USR1 $pid' USR1\nsrun python train.py &\npid=$!\nwait $pid\nwait $pid\n"
        ),
    ),
    Pair(
        "R04",
        Case("--signal=USR1@300", "trap 'touch stop' USR1\nsrun python train.py &\nwait\n"),
        Case("--signal=B:USR1@300", "trap 'touch stop' USR1\nsrun python train.py &\nwait\n"),
    ),
    Pair("R05", Case("--signal=USR1@10"), Case("--signal=USR1@300")),
    Pair("R06", Case("--requeue"), Case("--requeue\n--open-mode=append")),
    Pair(
        "R07",
        Case("--requeue\n--open-mode=append"),
        Case("--requeue\n--open-mode=append", "srun python train.py --resume last\n"),
    ),
    Pair(
        "R08",
        Case(
            "--signal=USR1@90\n--nodes=1\n--ntasks-per-node=4",
            "trap 'scontrol requeue $SLURM_JOB_ID' TERM\nsrun python train.py\n",
            LIGHTNING,
        ),
        Case("--signal=USR1@90\n--nodes=1\n--ntasks-per-node=4", "srun python train.py\n", LIGHTNING),
    ),
    Pair(
        "R09",
        Case("--nodes=2\n--ntasks-per-node=4"),
        Case("--nodes=2\n--ntasks-per-node=4", "srun --kill-on-bad-exit=1 python train.py\n"),
    ),
    Pair(
        "R10",
        Case(
            "--nodes=2\n--ntasks-per-node=4",
            program="import signal, sys, torch\ntorch.distributed.init_process_group()\n"
            "def stop(*_):\n    save()\n    sys.exit(0)\nsignal.signal(signal.SIGUSR1, stop)\n",
        ),
        Case(
            "--nodes=2\n--ntasks-per-node=4",
            program="import signal, sys, torch\ntorch.distributed.init_process_group()\n"
            "def stop(*_):\n    global stopping\n    stopping = True\nsignal.signal(signal.SIGUSR1, stop)\n"
            "def main():\n    sys.exit(0)\n",
        ),
    ),
    Pair(
        "R11",
        Case("--nodes=4", "srun -N1 -n1 torchft_lighthouse --min_replicas 3 &\nsrun python train.py\nwait\n"),
        Case(
            "--nodes=4\n--no-kill", "srun -N1 -n1 torchft_lighthouse --min_replicas 3 &\nsrun python train.py\nwait\n"
        ),
    ),
    Pair(
        "R12",
        Case(
            "--nodes=4\n--no-kill",
            "export NUM_REPLICAS=4\nsrun -n1 torchft_lighthouse --min_replicas 4 &\nsrun python train.py\nwait\n",
        ),
        Case(
            "--nodes=4\n--no-kill",
            "export NUM_REPLICAS=4\nsrun -n1 torchft_lighthouse --min_replicas 3 &\nsrun python train.py\nwait\n",
        ),
    ),
    Pair(
        "D34",
        Case(GPU, "python train.py   # shoal: ignore G99\n"),
        Case(GPU, "python train.py   # shoal: ignore G02\n"),
    ),
    Pair("D33", Case("--array=0-N"), Case("--array=0-9:2,20%4")),
    Pair(
        "G22",
        Case("--nodes=1\n--ntasks-per-node=4\n--gpus-per-node=4\n--cpus-per-task=8", program=TRAINS),
        Case(
            "--nodes=1\n--ntasks-per-node=4\n--gpus-per-node=4\n--cpus-per-task=8",
            "srun bash -c 'python train.py --seed $SLURM_PROCID'\n",
            program=TRAINS,
        ),
    ),
    Pair(
        "G23",
        Case("--nodes=1\n--ntasks=2", "mpirun -np 8 python train.py\n"),
        Case("--nodes=1\n--ntasks=8", "mpirun -np 8 python train.py\n"),
    ),
    Pair(
        "S17",
        Case(GPU, "torchrun --standalone --nproc-per-node=$SLURM_GPUS_PER_NODE train.py\n"),
        Case(GPU, "torchrun --standalone --nproc-per-node=${SLURM_GPUS_PER_NODE:-4} train.py\n"),
    ),
    *(
        Pair("G24", _torchrun(nodes=2, words=f"--nnodes=2 --nproc-per-node=4 {words}"), good)
        for good in [_torchrun(nodes=2, words=f"--nnodes=2 --nproc-per-node=4 {RENDEZVOUS}")]
        for words in ("", "--master-addr=$HEAD", "--rdzv-endpoint=$HEAD:23456")
    ),
    Pair(
        "G24",
        _torchrun(nodes=2, words="--nnodes=$SLURM_NNODES --nproc-per-node=4"),
        Case(
            "--nodes=2\n--ntasks-per-node=1\n--gres=gpu:4",
            "srun bash -c 'torchrun --nnodes=2 --node-rank=$SLURM_NODEID --master-addr=$H --nproc-per-node=4 t.py'\n",
        ),
    ),
    Pair(
        "G09",
        Case("--gres=gpu:2", "torchrun train.py\n"),
        Case("--gres=gpu:1", "torchrun train.py\n"),
    ),
    *(
        Pair("G09", Case("--gres=gpu:2", "torchrun train.py\n"), Case("--gres=gpu:2", f"{line}\n"))
        for line in (
            "env PET_NPROC_PER_NODE=2 torchrun train.py",
            'torchrun "$@"',
            "torchrun $DIST train.py",
            "CUDA_VISIBLE_DEVICES=0 torchrun --standalone eval.py",
        )
    ),
    Pair(
        "G24",
        _torchrun(nodes=2, words="--nnodes=2 --nproc-per-node=4"),
        Case(
            "--nodes=2\n--ntasks-per-node=1\n--gres=gpu:4",
            'srun bash -c "PET_NODE_RANK=\\$SLURM_NODEID torchrun --nnodes=2 --nproc-per-node=4 a.py"\n',
        ),
    ),
    Pair(
        "G09",
        Case("--gres=gpu:2", "srun python -m torch.distributed.launch train.py\n"),
        Case("--gres=gpu:2", "export PET_NPROC_PER_NODE=2\ntorchrun train.py\n"),
    ),
    # Further shapes of the mistakes above, and scripts that only look like them.
    Pair(
        "D02",
        Case(raw=b"#!/bin/bash\n#SBTACH --gres=gpu:1\n#SBATH --mem=4G\npython train.py\n"),
        Case(raw=b"#!/bin/bash\n#SBATCH --mem=4G\n##SBATCH --qos=high\n#PBS -l nodes=1\npython train.py\n"),
    ),
    Pair("D07", Case("--array=0-3\n--output=logs/%A/%a.out"), Case("--output=/somewhere/else/%j.out")),
    Pair("D26", Case("--mem=4G\n--mem=8G"), Case("--mail-type=BEGIN\n--mail-type=END\n--exclude=a\n--exclude=a,b")),
    Pair(
        "D35", Case("", 'echo "open\npython train.py\n'), Case("", "IFS=$'\\n'\nx=$(printf $'it\\'s')\necho \"$'\"\n")
    ),
    Pair(
        "G02",
        Case("--ntasks=1\n--gres=gpu:4\n--cpus-per-task=32", "python train.py --devices 4 --strategy ddp\n"),
        Case(
            "--ntasks-per-node=4\n--nodes=1\n--gres=gpu:4\n--cpus-per-task=8",
            "srun python train.py --devices 4 --strategy ddp\n",
        ),
    ),
    Pair(
        "G02",
        Case("--ntasks=1\n--gres=gpu:4\n--cpus-per-task=32", "python train.py\n"),
        Case(
            "--ntasks=1\n--gres=gpu:4\n--cpus-per-task=32",
            "python train.py\n",
            program="from torch.multiprocessing import spawn\nspawn(work, nprocs=4)\n",
        ),
    ),
    Pair(
        "G10",
        _torchrun(nodes=2),
        _torchrun(nodes=2, words="--nnodes=$SLURM_NNODES --nproc-per-node=4 --rdzv-endpoint=$HEAD:$PORT"),
    ),
    Pair(
        "G21",
        Case(GPU, "python train.py\n", f"{TRAINS}torch.distributed.init_process_group('nccl')\n"),
        Case(GPU, "torchrun --nproc-per-node=4 train.py\n", f"{TRAINS}torch.distributed.init_process_group('nccl')\n"),
    ),
    Pair(
        "G21",
        Case(GPU, "python train.py\n", f"{TRAINS}torch.distributed.init_process_group('nccl')\n"),
        Case(
            GPU,
            "python train.py\n",
            f"{TRAINS}import torch.multiprocessing as mp\nmp.spawn(f)\ntorch.distributed.init_process_group('gloo')\n",
        ),
    ),
    Pair(
        "G21",
        Case(GPU, "python train.py\n", program="from transformers import Trainer\nTrainer(model).train()\n"),
        Case(
            GPU, "torchrun --nproc-per-node=4 train.py\n", program="from transformers import Trainer\nTrainer(model)\n"
        ),
    ),
    Pair(
        "R03",
        Case("--signal=B:USR1@300", "python train.py\n"),
        Case("--signal=B:USR1@300", "exec python train.py\n"),
    ),
    Pair(
        "S05",
        Case("--nodes=2\n--gpus-per-node=4", "srun -n1 python a.py &\nsrun -n1 python b.py &\nwait\n"),
        Case(
            "--nodes=2\n--gpus-per-node=4",
            'for node in "${nodes[@]}"; do\n  srun -N1 -n1 -w "$node" python train.py &\ndone\nwait\n',
        ),
    ),
    Pair(
        "S07",
        Case("", "module load cuda\nconda activate torch\npython train.py\n"),
        Case("", "module load anaconda3/2023.3\nconda activate torch\npython train.py\n"),
    ),
    Pair("X01", Case(GPU, "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5\npython train.py\n"), Case(GPU)),
    Pair("X01", Case("--gres=gpu:1", "CUDA_VISIBLE_DEVICES=1 python train.py\n"), Case("--gres=gpu:1")),
    # --- seen in public scripts
    Pair(
        "D35",
        Case(GPU, "ip=`hostname\npython train.py\n"),
        Case(GPU, "ip=`getent hosts \\`hostname\\` | cut -f1`\nfor h in `seq 0 3`; do\n  python train.py $h\ndone\n"),
    ),
    Pair(
        "D01",
        Case("", "export A=1\n#SBATCH --mem=4G\npython train.py\n"),
        Case(
            "", "x=1\n#SBATCH --mem=3g\ncat > job.sh <<EOF\n#!/bin/sh\n#SBATCH -n 1\npython a.py\nEOF\nsbatch job.sh\n"
        ),
    ),
    Pair(
        "G12",
        Case("--nodes=2\n--ntasks-per-node=2", "python train.py\n"),
        Case("--nodes=2\n--ntasks-per-node=2", 'RUN=mpiexec\nOPT="-iface ib0"\n$RUN $OPT -n 4 python train.py\n'),
    ),
    Pair(
        "G13",
        Case("--ntasks-per-node=4", "python sort_hosts.py\n"),
        Case("--ntasks-per-node=4", "python sort_hosts.py\nmpirun -x A=1 ./all_reduce\n"),
    ),
    Pair(
        "S01",
        Case(GPU, "python train.py\nwait\n"),
        Case(GPU, 'if [ -n "$A" ]; then\n  python train.py\nelse\n  echo none\nfi\n'),
    ),
    # A program that is told fewer GPUs than the node has; lists name indexes, and several programs share the GPUs.
    *(
        Pair("G09", Case(GPU, f"python train.py {bad}\n"), Case(GPU, f"{good}\n"))
        for bad, good in (
            ("--num_gpus 1", "python train.py --num_gpus 4"),
            ("--cfg a.yaml --set NUM_GPUS 1 LR 0.1", "python train.py --gpus 0 1 2 3"),
            ("trainer.devices=2", "python train.py --gpu 1"),
            ("--n-gpus=1", "python train.py --gpus 1 &\npython train.py --gpus 3 &\nwait"),
            ("--gpus 1", "python train.py --gpus=-1"),
        )
    ),
    *(
        Pair("G14", Case("--gres=gpu:0", f"python train.py {bad}\n"), Case("--gres=gpu:0", f"python train.py {good}\n"))
        for bad, good in (("--gpu 0", "--gpu -1"), ("--device cuda", "--device cpu"), ("--use_cuda", "--lr 0.1"))
    ),
    # Words that only eval joins to commands.
    Pair(
        "S01",
        Case(GPU, 'prepare="mkdir -p out; cd out;"\nall="$prepare torchrun $options train.py"\neval $all &\nwait\n'),
        Case(GPU, 'all="cd out; python train.py"\neval $all\n'),
    ),
    *(
        Pair("G12", Case("--nodes=2\n--gres=gpu:1", f"{line}\n"), Case("--nodes=1\n--gres=gpu:1", f"{line}\n"))
        for line in (
            "ipython -c 'run train.ipynb'",
            "ipython train.py",
            "papermill train.ipynb out.ipynb",
            "jupyter nbconvert --to notebook --execute train.ipynb",
        )
    ),
    Pair(
        "G25",
        Case("--nodes=2\n--gres=gpu:2", "srun --nodes=4 python train.py\n"),
        Case("--nodes=4\n--gres=gpu:2", "srun -N 2 python train.py\n"),
    ),
    *(
        Pair("S22", Case(GPU, f"{bad}\npython train.py\n"), Case(GPU, f"{good}\n"))
        for bad, good in (
            ("singularity exec --nv a.sif /bin/bash", "singularity exec --nv a.sif bash -c 'python train.py'"),
            ("singularity shell --nv a.sif", "singularity exec a.sif bash <<E\npython train.py\nE\npython plot.py"),
            ("srun --pty bash -i", "srun --pty bash train.sh\npython plot.py"),
        )
    ),
    Pair(
        "S23",
        Case("--array=[1-3]\n--gres=gpu:1", "conda create -y -n x python\npython train.py\n"),
        Case("--array=1-3\n--gres=gpu:1", "[ -d x ] || conda create -y -p x python\npython train.py\n"),
    ),
    Pair(
        "S20",
        Case(GPU, "python train.py \\\n  --lr 0.1\n> log.txt 2>&1\n"),
        Case(GPU, "> log.txt\npython train.py \\\n  --lr 0.1 \\\n> log.txt 2>&1\n"),
    ),
    Pair(
        "D14",
        Case("--gres=gpu:2\n--ntasks-per-node=2\n--cpus-per-task=8\n--mem-per-cpu=100mb"),
        Case("--gres=gpu:2\n--ntasks-per-node=2\n--cpus-per-task=8\n--mem-per-cpu=1000mb"),
    ),
    Pair("D33", Case("--array=(1-3)"), Case("--array=[1,3-9]%2")),
    Pair(
        "D01",
        Case(GPU, "python train.py\n#SBATCH --signal=USR1@60\n"),
        Case(GPU, "python train.py\n#SBATCH WARNING:\n#SBATCH: 2 warnings were found.\n"),
    ),
    Pair("D25", Case("--taskz=2"), Case("--tasks=2")),
    Pair(
        "G18",
        Case("--gres=gpu:4\n--ntasks-per-node=4\n--cpus-per-task=2", "srun python train.py --num-workers 4\n"),
        Case("--gres=gpu:4\n--ntasks-per-node=4\n--cpus-per-task=2", "torchrun train.py --num-workers 1\n"),
    ),
    Pair(
        "N01",
        Case(GPU, "python train.py --init tcp://127.0.0.1:23333\n"),
        Case(GPU, "python train.py --init 23333\n"),
    ),
]
