"""What Slurm's words about a job mean to a reader; the words themselves are in kernel/slurm_text.py."""

from __future__ import annotations

from shoal.kernel import SLURM_ACTIVE_STATES, SLURM_ENDED_STATES, JobRow, describe_exit_code
from shoal.observe.records import Verdict

__all__ = [
    "BLOCKED_REASONS",
    "SLURM_ACTIVE_STATES",
    "SLURM_ENDED_STATES",
    "JobRow",
    "describe_verdict",
    "verdict_of_row",
]

#: Reasons with which a pending job waits for ever, and what frees it.
BLOCKED_REASONS = {
    "launch failed requeued held": "scontrol release {job}",
    "JobHoldMaxRequeue": "scontrol release {job}",
    "JobHeldAdmin": "ask the cluster's administrators",
    "JobHeldUser": "scontrol release {job}",
    "DependencyNeverSatisfied": "shoal cancel {run}",
    "PartitionTimeLimit": "shoal cancel {run}   # and ask for less time",
    "PartitionNodeLimit": "shoal cancel {run}   # and ask for fewer nodes",
    "PartitionDown": "sinfo   # the partition takes no jobs now",
    "PartitionInactive": "sinfo   # the partition takes no jobs now",
    "BadConstraints": "shoal cancel {run}   # no node can serve the request",
    "AssocGrpCPUMinutesLimit": "sacctmgr show assoc user=$USER   # the account's budget is used up",
    "InvalidAccount": "sacctmgr show assoc user=$USER",
    "InvalidQOS": "sacctmgr show assoc user=$USER",
}


def verdict_of_row(row: JobRow) -> Verdict:
    return Verdict(
        word=row.word,
        exit_code=row.exit_code,
        signal=row.signal,
        by=row.by,
        node=row.node,
        reason=row.reason,
        oom_step=row.oom_step,
    )


def describe_verdict(word: str, verdict: Verdict | None) -> str:
    if word == "CANCELLED":
        return f"cancelled by {verdict.by}" if verdict and verdict.by else "cancelled"
    if word == "FAILED" and verdict is not None:
        if (verdict.exit_code, verdict.signal) == (0, 53):
            return "Slurm could not open the output file: its folder is missing or not writable"
        return f"killed by signal {verdict.signal}" if verdict.signal else describe_exit_code(verdict.exit_code or 0)
    node = f" ({verdict.node})" if verdict and verdict.node else ""
    return {
        "TIMEOUT": "stopped at its time limit",
        "DEADLINE": "stopped at its deadline",
        "OUT_OF_MEMORY": "out of memory: the kernel killed a process of the job",
        "PREEMPTED": "preempted by another job",
        "NODE_FAIL": f"the node failed{node}",
        "BOOT_FAIL": f"the node did not boot{node}",
        "COMPLETED": "exit code 0",
    }.get(word, word)
