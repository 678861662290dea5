"""Submission is a transaction: claim on disk, send with a token in the job's name, write down the answer.

decide.py       (what is asked for, what is there) -> start, leave alone, or refuse; pure
secrecy.py      what must not leave this machine in a script, an argument or a record
transaction.py  what a command adds to the one transaction (shoal.kernel.submission): specs, folders, scripts
here.py         the same for this machine: the run is a process, started and followed to its end
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.submit import cancelling, continuing, retrying, standing
    from shoal.submit.budget import admit_everywhere, set_limits
    from shoal.submit.cancelling import Cancelled, end_cancelled
    from shoal.submit.comparing import compare_shapes
    from shoal.submit.continuing import Continuation, why_unknown
    from shoal.submit.finishing import observe_and_finish
    from shoal.submit.orders import How, Order, Result, prepare
    from shoal.submit.packing import Packed, pack_commands
    from shoal.submit.pruning import removed
    from shoal.submit.scripts import read_scripts, submit_asked, submit_described, submit_scripts, tell_secrets, where
    from shoal.submit.trial import Comparison, Wish, apply, compare
else:
    __getattr__ = lazy_exports(__name__)
