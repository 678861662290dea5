"""What Slurm prints, changed: every parser gives an answer, in time, and never an exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import changed_text, fuzz_settings, limited_cpu
from shoal.actions.adopt import script_arguments
from shoal.clusters import load, parse
from shoal.kernel import slurm_job, slurm_text

#: `scontrol show job` of 22.05 and of 26.05.
JOBS = (
    """JobId=7 ArrayJobId=5 ArrayTaskId=4 JobName=train a=b
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:03 TimeLimit=3-00:00:00 TimeMin=N/A
   SubmitTime=2026-11-18T07:58:54 EligibleTime=2026-11-18T07:58:54
   StartTime=2026-11-18T07:58:55 EndTime=2026-11-21T07:58:55 Deadline=N/A
   NumNodes=1-1 NumCPUs=4 NumTasks=2 CPUs/Task=2 ReqB:S:C:T=0:0:*:*
   ReqTRES=cpu=4,mem=250M,node=1,billing=1,gres/gpu:a100=2
   AllocTRES=cpu=4,mem=250M,node=1,gres/gpu=2,gres/gpu:a100=2
   Command=/tmp/try/j.sh a=1 b
   WorkDir=/tmp/try
   StdOut=/tmp/try/slurm-%A_%a.out
""",
    """JobId=1 ArrayJobId=1 ArrayTaskId=4-9%2 JobName=j.sh
   JobState=PENDING Reason=JobHeldUser Dependency=(null)
   OverSubscribe=NO Exclusive=NO Contiguous=0 Licenses=(null) LicensesAlloc=(null) Network=(null)
   Command=/tmp/try/j.sh
   SubmitLine=sbatch -H -J WorkDir=/x j.sh a=1 b c
   WorkDir=/tmp/try
   StdOut=/tmp/try/slurm-1_4294967294.out
""",
)
SQUEUE = "12|12|N/A|RUNNING|n1|lab|7|2026-11-17T19:58:40|None|a\n14|13|3|PENDING||lab|7|N/A|(launch failed|held)|b-x\n"
SACCT = (
    "7|7|REQUEUED|0:0|n1|2026-11-17T19:58:40|2026-11-17T19:59:40|a\n7.batch|7.batch|CANCELLED|0:15|n1|x|y|batch\n"
    "9_2|11|CANCELLED by 1000|0:0|None assigned|Unknown|Unknown|b\n"
)
SETTINGS = "Configuration data\nClusterName = x\nSLURM_VERSION = 26.05.5\nAccountingStorageEnforce = limits\n"
PARTITIONS = """PartitionName=main
   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL
   MaxNodes=UNLIMITED MaxTime=3-00:00:00 MinNodes=0 LLN=NO
   DefaultTime=NONE Default=YES QoS=N/A State=UP TotalCPUs=64 TotalNodes=4
   JobDefaults=(null) DefMemPerCPU=250 MaxMemPerNode=UNLIMITED TRES=cpu=64,mem=16000M,node=4,gres/gpu=16
"""
RESERVATIONS = """ReservationName=maint StartTime=2026-11-18T07:00:00 EndTime=2026-11-19T07:00:00 Duration=1-00:00:00
   Nodes=n[1-4] NodeCnt=4 CoreCnt=64 Features=(null) PartitionName=(null) Flags=MAINT,SPEC_NODES
   Users=root Groups=(null) Accounts=(null) State=INACTIVE
"""
TABLE = "main*|up|3-00:00:00|4|16|4000|gpu:fake:4(S:0)|idle|n[1-4]\nlow|up|infinite|2|16+|4000+|(null)|mix~|n1\n"
SHORT = "a|b|c|1-00:00:00|cpu=1,gres/gpu=8|5||\nlab|root|normal,high|normal|||||\n"

PARSERS: dict[str, tuple[Callable[[str], Any], tuple[str, ...]]] = {
    "squeue": (slurm_text.parse_squeue, (SQUEUE,)),
    "sacct": (slurm_text.parse_sacct, (SACCT,)),
    "job state": (lambda text: slurm_text.parse_job_state(text, "12"), ("12 RUNNING N/A\n12 PENDING x\n",)),
    "time": (slurm_text.parse_time, ("2026-11-17T19:58:40", "N/A")),
    "dependencies": (lambda text: slurm_text.replace_job(text, "7", "8"), ("afterok:7:9,afterany:7_4?singleton",)),
    "sbatch": (lambda text: slurm_text.classify_sbatch(0, text, text), ("Submitted batch job 12\n", "12;east\n")),
    "scontrol": (lambda text: [_look(job) for job in slurm_job.parse_jobs(text)], JOBS),
    "accounting": (lambda text: [_look(job) for job in slurm_job.parse_accounting(text)], (SACCT, SHORT)),
    "time limit": (slurm_job.parse_time_limit_s, ("3-00:00:00", "UNLIMITED")),
    "sinfo": (parse.parse_sinfo, (TABLE,)),
    "gres": (parse.parse_gres, ("gpu:a100:4(S:0-1),shard:8", "(null)")),
    "config": (parse.parse_config, (SETTINGS,)),
    "version": (parse.parse_version, ("26.05.5", "22.05.8-4")),
    "cluster name": (parse.parse_cluster_name, (SETTINGS,)),
    "partitions": (lambda text: list(parse.parse_partitions(text, {})), (PARTITIONS,)),
    "reservations": (lambda text: list(parse.parse_reservations(text)), (RESERVATIONS,)),
    "user": (lambda text: parse.parse_user(text, "root"), (SHORT,)),
    "accounts": (parse.parse_accounts, (SHORT,)),
    "qos": (parse.parse_qos, (SHORT,)),
    "number": (parse.parse_number, ("5", "N/A")),
    "time limit of a partition": (parse.parse_time_limit_s, ("infinite", "3-00:00:00", "30")),
    "nodes": (load.parse_nodes, (TABLE, "n1|idle|gpu:fake:4|gpu:fake:0(IDX:N/A)|main\n")),
    "queue": (load.parse_queue, (SQUEUE, "main|PENDING|2|gres/gpu:1\n")),
    "shares": (lambda text: load.parse_shares(text, "root"), (SHORT, "lab|root|1|0.5|10|0.1|0.75\n")),
}  # fmt: skip


def _look(job: slurm_job.JobDescription) -> list[str]:
    slurm_job.log_path(job, job.stdout)
    return script_arguments(job)


@pytest.mark.parametrize("name", PARSERS)
@fuzz_settings
@given(data=st.data())
def test_no_answer_of_slurm_breaks_its_parser(name: str, data: st.DataObject) -> None:
    parser, samples = PARSERS[name]
    text = data.draw(changed_text(*samples))
    with limited_cpu():
        parser(text)


def test_what_was_found_is_no_number() -> None:
    """Digits that int() does not take, 5000 of them, and memory with two points."""
    assert parse.parse_number("9" * 5000) is None
    (job,) = slurm_job.parse_jobs("JobId=1 ArrayTaskId=\u00b2 JobName=a\n   ReqTRES=mem=1.2.3G,gres/gpu=" + "9" * 5000)
    assert (job.task, job.memory_mb, job.gpus) == (None, None, 0)


def test_a_submit_line_is_free_text_and_has_the_arguments_of_the_script() -> None:
    (job,) = slurm_job.parse_jobs(JOBS[1])
    assert job.work_dir == "/tmp/try"
    assert script_arguments(job) == ["a=1", "b", "c"]
