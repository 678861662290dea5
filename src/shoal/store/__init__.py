"""The run folders: what is written there, by whom, and what it means.

    records.py      the small files as typed records
    writing.py      spec, claim, sending, outcome, cancel: each created once, by link, by whoever comes first
    reading.py      one listing per run, and only the files that matter for its state
    slurm_words.py  Slurm's states and reasons in our words
    fold.py         (files, Slurm's rows) -> what the run is doing; pure

File names live in shoal.kernel.layout and the way a file is written in shoal.kernel.files, which jobs share.
"""
