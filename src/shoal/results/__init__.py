"""From the metrics of runs to a table.

table.py     runs -> rows over seeds: mean, standard deviation, number of seeds, and the runs that are missing; pure

What runs measured is read by shoal.kernel.progress.
"""
