"""What runs inside a job: fence, attempt, heartbeat, signals, exit code.

Standard library only and Python 3.8 or newer, because it runs with whatever Python a node has. The modules here travel
as one file (`shipping.py` zips them into the project's state folder); the rest of shoal imports from them what both
sides must agree on: file names (`layout.py`) and how a small file is written so that it survives (`files.py`).
"""
