"""Make the pictures of status, report and the page from real runs: python docs/make_view_pictures.py [page]

Needs Slurm's programs (a sandbox is started), Chromium, and `pip install rich selenium`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from make_pictures import HERE, SHOAL, picture, record

from shoal.sandbox import Sandbox, SandboxSpec

TOML = """
[steps.train]
command = "python3 train.py"
checkpoint = "model_*.pth"
request = { cpus = 2, gpus = 2, memory = "800M", time = "20m" }
"""
TRAIN = """
import json, os, random, sys, time
seed, mode, steps = int(os.environ["SHOAL_SEED"]), sys.argv[1], int(sys.argv[2])
out, rng = os.environ["SHOAL_OUTPUT_DIR"], random.Random(seed)
for step in range(1, steps + 1):
    time.sleep(0.25)
    loss = 2 / (1 + step / 8) + rng.random() * 0.08
    print(f"step {step}/{steps} loss {loss:.4f}", flush=True)
    record = {"step": step, "total": steps, "loss": round(loss, 4)}
    open(os.environ["SHOAL_PROGRESS"], "w").write(json.dumps(record))
    open(out + "/metrics.jsonl", "a").write(json.dumps({"step": step, "loss": loss, "accuracy": 1 - loss / 3}) + "\\n")
    if mode == "oom" and step == 18:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.50 GiB (GPU 0; 79.1 GiB total capacity)")
    if mode == "bug" and step == 30:
        raise KeyError("learning_rate")
open(out + "/metrics.json", "w").write(json.dumps({"accuracy": 0.9 + rng.random() / 50, "loss": loss}))
"""


def write_project(root: Path) -> None:
    root.mkdir()
    (root / "shoal.toml").write_text(TOML)
    (root / "train.py").write_text(TRAIN)
    for name, count, steps in (("001_baseline", 6, 40), ("002_larger_batch", 8, 60), ("003_long", 6, 400)):
        folder = root / "experiments" / name
        folder.mkdir(parents=True)
        for seed in range(count):
            mode = (
                "oom" if name.startswith("002") and seed % 3 == 1 else "bug" if (name[:3], seed) == ("001", 4) else "ok"
            )
            text = f'source "$(shoal shell)"\ntrain -- {mode} {steps}\n'
            (folder / f"000_train_{seed}.sh").write_text(text)


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pictures-") as folder,
        Sandbox(SandboxSpec(name="lab")) as cluster,
    ):
        root = Path(folder) / "vision"
        write_project(root)
        os.environ.update(cluster.env(), PATH=f"{SHOAL.parent}{os.pathsep}{os.environ['PATH']}")
        os.chdir(root)
        for name in sorted(path.name for path in (root / "experiments").iterdir()):
            subprocess.run([SHOAL, "submit", f"experiments/{name}", "-q"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(
            [SHOAL, "watch", "001_baseline", "002_larger_batch", "-q"], check=False, stdout=subprocess.DEVNULL
        )
        time.sleep(3)  # so that the newest runs have something to show
        picture("status", "shoal status", record([str(SHOAL), "status"]))
        picture("report", "shoal report 002_larger_batch", record([str(SHOAL), "report", "002_larger_batch"]))
        page_pictures()
        subprocess.run([SHOAL, "cancel", "*", "--yes", "-q"], check=True, stdout=subprocess.DEVNULL)


SPIRALS = """
import argparse, json, os, time
import numpy as np
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float); parser.add_argument("--width", type=int); parser.add_argument("--seed", type=int)
args = parser.parse_args()
rng = np.random.default_rng(args.seed)
angle, side = rng.uniform(0.5, 9, 600), np.arange(600) % 2
x = np.stack([angle * np.cos(angle + np.pi * side), angle * np.sin(angle + np.pi * side)], 1) / 9 + rng.normal(0, 0.02, (600, 2))
y, a, b = side.astype(float), slice(0, 450), slice(450, 600)
w1, b1, w2 = rng.normal(0, 3, (2, args.width)), rng.normal(0, 1, args.width), rng.normal(0, args.width ** -0.5, args.width)
def forward(x):
    hidden = np.tanh(x @ w1 + b1)
    return hidden, 1 / (1 + np.exp(-np.clip(hidden @ w2, -30, 30)))
def loss(p, y):
    return float(-np.mean(y * np.log(p + 1e-9) + (1 - y) * np.log(1 - p + 1e-9)))
with open(os.environ["SHOAL_OUTPUT_DIR"] + "/metrics.jsonl", "w") as file:
    for step in range(1, 1501):
        hidden, p = forward(x[a])
        error = (p - y[a]) / len(p)
        back = np.outer(error, w2) * (1 - hidden ** 2)
        w2 -= args.lr * 10 * hidden.T @ error
        w1 -= args.lr * 10 * x[a].T @ back
        b1 -= args.lr * 10 * back.sum(0)
        if step % 10 == 0:
            q = forward(x[b])[1]
            row = {"step": step, "t": time.time(), "train_loss": loss(p, y[a]), "val_loss": loss(q, y[b])}
            file.write(json.dumps({**row, "accuracy": float(np.mean((q > 0.5) == y[b]))}) + "\\n")
"""


def sweep(root: Path) -> None:
    """A real training of 8 settings with 3 seeds, on this machine."""
    root.mkdir()
    (root / "shoal.toml").write_text('[steps.train]\ncommand = "true"\n')
    (root / "train.py").write_text(SPIRALS)
    words = [SHOAL, "pack", "--slots", "2", "--name", "001_spirals", "--seeds", "0-2", "-q", "--on", "local"]
    words += ["--set", "lr=0.01,0.03,0.1,0.3", "--set", "width=16,64", "--"]
    words += [sys.executable, "train.py", "--lr", "{lr}", "--width", "{width}", "--seed", "{seed}"]
    subprocess.run(words, check=True, cwd=root, stdout=subprocess.DEVNULL)


def page(root: Path) -> None:
    """Means over seeds with their curves, as Chromium draws them."""
    from selenium import webdriver

    from shoal.clusters import QueueState
    from shoal.views.web.api import DashboardData
    from shoal.views.web.server import DashboardServer

    server = DashboardServer(DashboardData(str(root / ".shoal"), lambda environ, newer: QueueState({})))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = webdriver.ChromeOptions()
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        for word in (*flags.split(), "disable-component-update", "disable-sync", f"user-data-dir={profile}"):
            options.add_argument(f"--{word}")
        options.add_argument("--window-size=1400,900")
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
        try:
            browser.get(server.link)
            time.sleep(3)
            address = browser.current_url.partition("#")[0]
            for name, state in (
                ("page", "exp=001_spirals&group=seeds&sort=last&view=curves&curves=step,1,,"),
                ("parameters", "exp=001_spirals&sort=last&view=params"),
            ):
                browser.get("about:blank")
                browser.get(f"{address}#{state}")
                time.sleep(4)
                browser.save_screenshot(str(HERE / "images" / f"{name}.png"))
        finally:
            browser.quit()
            server.shutdown()


def page_pictures() -> None:
    """`python docs/make_view_pictures.py page`: these two alone, without Slurm."""
    with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
        root = Path(folder) / "vision"
        sweep(root)
        page(root)


if __name__ == "__main__":
    page_pictures() if sys.argv[1:] == ["page"] else main()
