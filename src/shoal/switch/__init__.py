"""Keep a running job, or replace it by one with another request: `shoal switch`.

    measure.py   read what the running job has: its progress, its speed, and how well similar runs scaled
    advice.py    decide, with numbers: keep or switch (pure)
    replace.py   compare a run with its replacement, and submit the replacement as a run of its own

`compare` changes nothing; `apply` submits. The rest happens inside the replacement job (job/replacement.py): it takes
the run over when it is healthy, and nothing waits here.
"""

from shoal.switch.replace import SwitchComparison, SwitchOptions, apply, compare

__all__ = ["SwitchComparison", "SwitchOptions", "apply", "compare"]
