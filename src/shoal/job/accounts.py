"""How many more jobs Slurm's accounting lets this user submit: limits of user, account and QOS, less what they hold.

The controller tells both in one answer, `GrpSubmitJobs=50(4)`; other people's jobs and other projects' are in it. An
entry that nobody has used yet is not shown there, so a limit that is known from elsewhere still has to be kept.
"""

import getpass
import os
import re
from typing import List, Optional, Tuple

from ..kernel import slurm

_SUBMIT_LIMIT = re.compile(r"(\w*SubmitJobs\w*)=(\d+)\((\d+)\)")
_ASSOCIATION = re.compile(r"Account=(\S*) UserName=([^\s(]*)")


def slurm_room(account: Optional[str], qos: str) -> Optional[int]:
    """What is left under every limit that the controller shows; None where it shows none, or does not answer."""
    if not account:
        return None
    user = getpass.getuser()
    argv = ["scontrol", "show", "assoc_mgr", "flags=assoc,qos", "users=%s" % user, "accounts=%s" % account]
    argv += ["qos=%s" % qos] if qos else []
    done = slurm.run_command(argv, slurm.QUERY_TIMEOUT_S, os.environ)
    return parse_slurm_room(done.stdout, user, os.getuid(), account, qos.split(","))


def parse_slurm_room(text: str, user: str, uid: int, account: str, qos: List[str]) -> Optional[int]:
    """The least that any limit leaves. An account's own line tells its users' limit too, which is not its own."""
    left: List[int] = []
    counts: Tuple[str, ...] = ()  # beginnings of the names of limits that hold for us, where we are in the text
    inside = False
    for line in text.splitlines():
        words = line.split()
        owner = _ASSOCIATION.search(line)
        if owner is not None:
            mine = owner.group(1) == account and owner.group(2) in ("", user)
            counts = (("Grp", "Max") if owner.group(2) else ("Grp",)) if mine else ()
        elif line.startswith("QOS="):
            inside = line[4:].partition("(")[0] in qos
            counts = ("Grp",) if inside else ()
        elif words in (["Account", "Limits"], ["User", "Limits"]):
            counts = ()
        elif len(words) == 1 and "=" not in line:
            # The name of an account, or a user as a number or with one, above its limits within the QOS.
            counts = ("Max",) if inside and words[0] in (account, str(uid), "%s(%d)" % (user, uid)) else ()
        for name, most, used in _SUBMIT_LIMIT.findall(line):
            if name.startswith(counts):
                left.append(int(most) - int(used))
    return min(left) if left else None
