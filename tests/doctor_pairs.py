"""For each rule of the doctor: a script in which it must find something, and one that it must leave alone.

A pair is (code, bad, good); each side is a `Case`: directives, body, and where the rule needs them the Python program
beside the script, a file system and a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from shoal.clusters.facts import Association, ClusterFacts, NodeKind, Partition, Qos, Reservation

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
    Pair("D31", Case(GPU, "echo 'never closed\npython train.py\n"), Case(GPU, "echo 'closed'\npython train.py\n")),
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
        _torchrun(nodes=2, words="--nnodes=4 --nproc-per-node=4"),
        _torchrun(nodes=2, words="--nnodes=$SLURM_NNODES --nproc-per-node=4"),
    ),
    Pair(
        "G11",
        Case("--nodes=1\n--ntasks-per-node=2\n--gres=gpu:2", program=LIGHTNING),
        Case("--nodes=1\n--ntasks-per-node=4\n--gres=gpu:4", program=LIGHTNING),
    ),
    Pair(
        "G12",
        _torchrun(nodes=2, words="--nnodes=2 --nproc-per-node=4", srun=""),
        _torchrun(nodes=2, words="--nnodes=2 --nproc-per-node=4"),
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
    Pair("S16", Case(GPU, "source ~/.bashrc\npython train.py\n"), Case(GPU, "source env.sh\npython train.py\n")),
    Pair(
        "N01",
        Case(GPU, "export MASTER_PORT=29500\nsrun python train.py\n"),
        Case(GPU, "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\nsrun python train.py\n"),
    ),
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
        Case(GPU, "export SINGULARITYENV_CUDA_VISIBLE_DEVICES=0\nsingularity exec --nv img.sif python train.py\n"),
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
]
