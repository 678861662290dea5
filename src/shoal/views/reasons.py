"""Slurm's reason words, in sentences: what a pending job waits for, and what its owner can do. Data, and one look-up.

Words are from the man page of squeue (JOB REASON CODES); a word that is not here is shown as it is.
"""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """`moves`: it starts by itself sooner or later. `smaller`: asking for less may start it sooner."""

    sentence: str
    action: str | None = None
    moves: bool = True
    smaller: bool = False


_LIMIT = "sacctmgr show assoc user=$USER format=account,qos,grptres,maxtres,maxjobs -P   # the limits that hold for you"
_RESERVED = "scontrol show reservation"

REASONS: dict[str, Reason] = {
    "None": Reason("Slurm has not looked at it yet"),
    "Priority": Reason("jobs with a higher priority are ahead of it in this partition", smaller=True),
    "Resources": Reason("it is next, and waits until enough nodes, GPUs, CPUs or memory are free", smaller=True),
    "Dependency": Reason("it waits for another job to finish"),
    "DependencyNeverSatisfied": Reason(
        "the job that it waits for failed, so it can never start", "shoal cancel {run}", False
    ),
    "BeginTime": Reason("its start was set to a later time (a requeued job also waits about two minutes)"),
    "JobArrayTaskLimit": Reason("as many tasks of its array run as the array allows at once"),
    "JobHeldUser": Reason("it is on hold by its owner", "scontrol release {job}", False),
    "JobHeldAdmin": Reason("it is on hold by an administrator", "ask the cluster's administrators", False),
    "JobHoldMaxRequeue": Reason("it was requeued too often and is on hold", "scontrol release {job}", False),
    "launch failed requeued held": Reason(
        "its launch failed on a node, and Slurm put it on hold", "scontrol release {job}", False
    ),
    "PartitionTimeLimit": Reason(
        "it asks for more time than the partition allows", "scontrol show partition {partition}", False
    ),
    "PartitionNodeLimit": Reason(
        "it asks for more nodes than the partition allows", "scontrol show partition {partition}", False
    ),
    "PartitionDown": Reason("its partition takes no jobs to run now", "sinfo -p {partition}"),
    "PartitionInactive": Reason("its partition is switched off", "sinfo -p {partition}"),
    "PartitionConfig": Reason("it does not fit the partition's rules", "scontrol show partition {partition}", False),
    "ReqNodeNotAvail": Reason(
        "a node that it needs is down, drained or reserved (a maintenance may be planned)", _RESERVED, smaller=True
    ),
    "Reservation": Reason("it waits for its reservation to begin", _RESERVED),
    "ReservationDeleted": Reason("its reservation was deleted", "shoal cancel {run}", False),
    "NodeDown": Reason("a node that it needs is down", "sinfo -R"),
    "BadConstraints": Reason(
        "no node can serve what it asks for", "sinfo -p {partition} -N -o '%N %G %c %m %f'", False
    ),
    "Licenses": Reason("it waits for a licence", "scontrol show licenses"),
    "FrontEndDown": Reason("no front end of the cluster is available"),
    "InvalidAccount": Reason("its account is not valid any more", _LIMIT, False),
    "InvalidQOS": Reason("its QOS is not valid", _LIMIT, False),
    "AccountNotAllowed": Reason("its account may not use this partition", _LIMIT, False),
    "QOSNotAllowed": Reason("its QOS may not be used in this partition", _LIMIT, False),
    "Prolog": Reason("the node's prologue is still running"),
    "Cleaning": Reason("its earlier run is still being cleaned up"),
    "SystemFailure": Reason("Slurm, a file system or the network failed", "ask the cluster's administrators", False),
    "NonZeroExitCode": Reason("it ended with an error and is on hold", "scontrol release {job}", False),
    "RaisedSignal": Reason("it raised a signal and waits to be requeued"),
    "InactiveLimit": Reason("it reached the system's inactivity limit", None, False),
    "SchedDefer": Reason("Slurm puts off scheduling while it is busy"),
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": Reason(
        "the nodes that it needs are down, drained, or reserved for higher partitions",
        "sinfo -p {partition}",
        smaller=True,
    ),
}
#: Families of words: limits of the account (Assoc*), of the QOS (QOS*), and what they are about.
_SCOPES = {"Assoc": "your account", "QOS": "the QOS"}
_THINGS = (
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


def explain(word: str | None) -> Reason:
    """The reason behind Slurm's word; an unknown word is quoted, never hidden."""
    text = (word or "None").strip("() ")
    if text in REASONS:
        return REASONS[text]
    for known, reason in REASONS.items():
        if len(known) > 8 and known in text:
            return reason
    for prefix, owner in _SCOPES.items():
        if text.startswith(prefix):
            thing = next((words for key, words in _THINGS if key in text), "a resource")
            budget = "Minutes" in text
            sentence = f"{owner} has used up its budget of {thing}" if budget else f"{owner} is at its limit of {thing}"
            per = " for one job: it asks for more than it may ever have" if "PerJob" in text else ""
            return Reason(f"{sentence}{per} (Slurm: {text})", _LIMIT, moves=not (budget or per), smaller=not budget)
    return Reason(f"Slurm says {text}", None)
