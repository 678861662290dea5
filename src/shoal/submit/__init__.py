"""Submission is a transaction: claim on disk, send with a token in the job's name, write down the answer.

decide.py       (what is asked for, what is there) -> start, leave alone, or refuse; pure
secrecy.py      what must not leave this machine in a script, an argument or a record
transaction.py  what a command adds to the one transaction (shoal.kernel.submission): specs, folders, scripts
here.py         the same for this machine: the run is a process, started and followed to its end
"""
