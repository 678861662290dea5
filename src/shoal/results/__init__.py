"""From output folders back to a table.

metrics.py   the numbers that a run left: metrics.json, metrics.jsonl, W&B's offline files, TensorBoard's events
records.py   the record formats behind the latter two, read without either library
table.py     runs -> groups over seeds: mean, standard deviation, count, and who is missing; pure
"""
