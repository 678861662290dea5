"""Submission is a transaction: claim on disk, send with a token in the job's name, write down the answer.

decide.py       (what is asked for, what is there) -> start, leave alone, or refuse; pure
secrecy.py      what must not leave this machine in a script, an argument or a record
transaction.py  claim -> send -> settle, in the order that survives a kill at every point
here.py         the same for this machine: the run is a process, started and followed to its end
failpoints.py   the marked points, at which tests kill the command
"""
