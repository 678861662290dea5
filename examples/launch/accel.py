"""A program that uses Accelerate and is started by `launch = "accelerate"`; it averages one number over its ranks."""

import json
import os

import torch
from accelerate import Accelerator

accelerator = Accelerator()
total = accelerator.reduce(torch.ones(1, device=accelerator.device))
where = {"world": accelerator.num_processes, "rank": accelerator.process_index, "host": os.uname().nodename}
print(json.dumps({"what": "accelerated", **where, "sum": total.item()}), flush=True)
accelerator.end_training()
