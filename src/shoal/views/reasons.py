"""Slurm's reason words, in sentences: what a pending job waits for, and what its owner can do. Data, and one look-up.

Words are from the man page of squeue (JOB REASON CODES); a word that is not here is shown as it is.
"""

from __future__ import annotations

from typing import NamedTuple


class PendingReason(NamedTuple):
    """`moves`: it starts by itself sooner or later. `smaller`: asking for less may start it sooner."""

    sentence: str
    action: str | None = None
    moves: bool = True
    smaller: bool = False


_LIMITS_COMMAND = (
    "sacctmgr show assoc user=$USER format=account,qos,grptres,maxtres,maxjobs -P   # the limits that hold for you"
)
_RESERVATION_COMMAND = "scontrol show reservation"

REASONS: dict[str, PendingReason] = {
    "None": PendingReason("Slurm has not looked at it yet"),
    "Priority": PendingReason("jobs with a higher priority are ahead of it in this partition", smaller=True),
    "Resources": PendingReason("it is next, and waits until enough nodes, GPUs, CPUs or memory are free", smaller=True),
    "Dependency": PendingReason("it waits for another job to finish"),
    "DependencyNeverSatisfied": PendingReason(
        "the job that it waits for failed, so it can never start", "shoal cancel {run}", False
    ),
    "BeginTime": PendingReason("its start was set to a later time (a requeued job also waits about two minutes)"),
    "JobArrayTaskLimit": PendingReason("as many tasks of its array run as the array allows at once"),
    "JobHeldUser": PendingReason("it is on hold by its owner", "scontrol release {job}", False),
    "JobHeldAdmin": PendingReason("it is on hold by an administrator", "ask the cluster's administrators", False),
    "JobHoldMaxRequeue": PendingReason("it was requeued too often and is on hold", "scontrol release {job}", False),
    "launch failed requeued held": PendingReason(
        "its launch failed on a node, and Slurm put it on hold", "scontrol release {job}", False
    ),
    "PartitionTimeLimit": PendingReason(
        "it asks for more time than the partition allows", "scontrol show partition {partition}", False
    ),
    "PartitionNodeLimit": PendingReason(
        "it asks for more nodes than the partition allows", "scontrol show partition {partition}", False
    ),
    "PartitionDown": PendingReason("its partition takes no jobs to run now", "sinfo -p {partition}"),
    "PartitionInactive": PendingReason("its partition is switched off", "sinfo -p {partition}"),
    "PartitionConfig": PendingReason(
        "it does not fit the partition's rules", "scontrol show partition {partition}", False
    ),
    "ReqNodeNotAvail": PendingReason(
        "a node that it needs is down, drained or reserved (a maintenance may be planned)",
        _RESERVATION_COMMAND,
        smaller=True,
    ),
    "Reservation": PendingReason("it waits for its reservation to begin", _RESERVATION_COMMAND),
    "ReservationDeleted": PendingReason("its reservation was deleted", "shoal cancel {run}", False),
    "NodeDown": PendingReason("a node that it needs is down", "sinfo -R"),
    "BadConstraints": PendingReason(
        "no node can serve what it asks for", "sinfo -p {partition} -N -o '%N %G %c %m %f'", False
    ),
    "Licenses": PendingReason("it waits for a licence", "scontrol show licenses"),
    "FrontEndDown": PendingReason("no front end of the cluster is available"),
    "InvalidAccount": PendingReason("its account is not valid any more", _LIMITS_COMMAND, False),
    "InvalidQOS": PendingReason("its QOS is not valid", _LIMITS_COMMAND, False),
    "AccountNotAllowed": PendingReason("its account may not use this partition", _LIMITS_COMMAND, False),
    "QOSNotAllowed": PendingReason("its QOS may not be used in this partition", _LIMITS_COMMAND, False),
    "Prolog": PendingReason("the node's prologue is still running"),
    "Cleaning": PendingReason("its earlier run is still being cleaned up"),
    "SystemFailure": PendingReason(
        "Slurm, a file system or the network failed", "ask the cluster's administrators", False
    ),
    "NonZeroExitCode": PendingReason("it ended with an error and is on hold", "scontrol release {job}", False),
    "RaisedSignal": PendingReason("it raised a signal and waits to be requeued"),
    "InactiveLimit": PendingReason("it reached the system's inactivity limit", None, False),
    "SchedDefer": PendingReason("Slurm puts off scheduling while it is busy"),
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": PendingReason(
        "the nodes that it needs are down, drained, or reserved for higher partitions",
        "sinfo -p {partition}",
        smaller=True,
    ),
}
#: Families of words: limits of the account (Assoc*), of the QOS (QOS*), and what they are about.
_LIMIT_SCOPES = {"Assoc": "your account", "QOS": "the QOS"}
_LIMITED_RESOURCES = (
    ("JobsPerUser", "jobs at once"),
    ("SubmitJob", "submitted jobs"),
    ("Jobs", "jobs at once"),
    ("GRES", "GPUs"),
    ("Node", "nodes"),
    ("CpuRunMinutes", "CPU-minutes of running jobs"),
    ("CPURunMinutes", "CPU-minutes of running jobs"),
    ("CpuMinutes", "CPU-minutes"),
    ("CPUMinutes", "CPU-minutes"),
    ("Cpu", "CPUs"),
    ("CPU", "CPUs"),
    ("Memory", "memory"),
    ("Mem", "memory"),
    ("Billing", "billing units"),
    ("Wall", "time"),
    ("Energy", "energy"),
)


def explain_reason(word: str | None) -> PendingReason:
    """The reason behind Slurm's word; an unknown word is quoted, never hidden."""
    text = (word or "None").strip("() ")
    if text in REASONS:
        return REASONS[text]
    for known, reason in REASONS.items():
        if len(known) > 8 and known in text:
            return reason
    for prefix, owner in _LIMIT_SCOPES.items():
        if text.startswith(prefix):
            thing = next((words for key, words in _LIMITED_RESOURCES if key in text), "a resource")
            budget = "Minutes" in text
            sentence = f"{owner} has used up its budget of {thing}" if budget else f"{owner} is at its limit of {thing}"
            per = " for one job: it asks for more than it may ever have" if "PerJob" in text else ""
            return PendingReason(
                f"{sentence}{per} (Slurm: {text})", _LIMITS_COMMAND, moves=not (budget or per), smaller=not budget
            )
    return PendingReason(f"Slurm says {text}", None)
