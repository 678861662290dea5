"""What every part of shoal agrees on: file names, records, leases, claims, and how Slurm is called.

Standard library only and Python 3.8 or newer. It is shipped into jobs together with `job/` (job/shipping.py), and
the commands on the login node use the same modules.
"""
