"""`hydra/launcher=shoal`: every point of a Hydra sweep is an ordinary run of shoal, a command and not a pickle.

launcher.py       the plugin and its settings; every Hydra program imports it, so it imports nothing of shoal
return_value.py   in a run: keep what the program's function returned
_points.py        overrides -> command, parameters and seed of a run
_submission.py    submit the points, wait for them, and give their results to the sweeper
"""
