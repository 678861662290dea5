"""Did the kernel kill something of this job for lack of memory? Asked of the cgroup, so that it needs no accounting."""

import os
from typing import Iterator


def oom_kills() -> int:
    """How many processes the kernel has killed for memory in this process's cgroups so far; 0 where nobody counts."""
    total = 0
    for folder in _memory_cgroups():
        for name in ("memory.events", "memory.oom_control"):
            try:
                with open(os.path.join(folder, name)) as file:
                    for line in file:
                        key, _, value = line.partition(" ")
                        if key == "oom_kill":
                            total += int(value)
            except (OSError, ValueError):
                continue
    return total


def _memory_cgroups() -> Iterator[str]:
    """The memory cgroup of this process and those above it that belong to the same Slurm job."""
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        elif "memory" in controllers.split(","):
            roots = ["/sys/fs/cgroup/memory"]
        else:
            continue
        while path not in ("", "/"):
            for root in roots:
                yield root + path
            path = os.path.dirname(path) if "/job_" in path else ""
