"""Slurm, in small parts that can be read one by one.

commands.py      kernel/slurm.py, which calls Slurm, with shoal's errors and hints
facts.py         what this Slurm says about itself: name, partitions, nodes, accounts
flags.py         sbatch flags as people write them -> a portable request, and what is left, verbatim
options.py       request + flags + cluster profile -> the options that sbatch gets
quoting.py       the one place where text becomes shell words or #SBATCH lines
script.py        the text of a batch script: header, set-up part, launch part
launch_lines.py  the launch part of a generated script: a plain process, or torchrun
"""
