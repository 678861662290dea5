"""How far the trained line is from the true one (slope 3, offset 1); the score goes into the run's output folder."""

import json
import os
import sys
from pathlib import Path

model = json.loads(Path(sys.argv[1]).read_text())
score = 1 / (1 + abs(model["slope"] - 3) + abs(model["offset"] - 1))
(Path(os.environ["SHOAL_OUTPUT_DIR"]) / "metrics.json").write_text(json.dumps({"score": score}))
print(f"score {score:.3f}")
