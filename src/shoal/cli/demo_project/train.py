"""A training small enough for a laptop: fit a line to noisy points by gradient descent, with checkpoints.

Reads its settings from TRAINING_CONFIG ("steps=50 rate=0.1"), as LEAD's training does, and everything else from what
shoal puts into the environment: seed, output folder, the checkpoint to resume from.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

config = dict(pair.split("=") for pair in os.environ.get("TRAINING_CONFIG", "").split())
steps, rate = int(config.get("steps", 50)), float(config.get("rate", 0.05))
crash_at = int(os.environ.get("CRASH_AT", -1))
out = Path(os.environ["SHOAL_OUTPUT_DIR"])
seed = int(os.environ.get("SHOAL_SEED") or 0)

rng = random.Random(seed)
points = [(x, 3 * x + 1 + rng.gauss(0, 0.1)) for x in (rng.uniform(-1, 1) for _ in range(200))]

state = {"step": 0, "slope": 0.0, "offset": 0.0}
if os.environ["SHOAL_RESUME_FROM"]:
    state = json.loads(Path(os.environ["SHOAL_RESUME_FROM"]).read_text())
elif sys.argv[1:]:
    state = {**json.loads(Path(sys.argv[-1]).read_text()), "step": 0}

while state["step"] < steps:
    if state["step"] == crash_at:
        raise RuntimeError(f"the machine hiccups at step {crash_at}")
    error = [(x, state["slope"] * x + state["offset"] - y) for x, y in points]
    state["slope"] -= rate * 2 * sum(x * e for x, e in error) / len(points)
    state["offset"] -= rate * 2 * sum(e for _, e in error) / len(points)
    state["step"] += 1
    loss = sum(e * e for _, e in error) / len(points)
    time.sleep(0.01)
    if state["step"] % (steps // 5) == 0:
        print(f"step {state['step']}/{steps} loss {loss:.4f}")
        Path(os.environ["SHOAL_PROGRESS"]).write_text(f"{state['step']}/{steps}\n")
        half = out / f"model_{state['step']:04}.json.tmp"
        half.write_text(json.dumps(state))
        half.rename(out / f"model_{state['step']:04}.json")
