"""Make the pictures of status, report and the page from real runs: python docs/make_view_pictures.py

Needs Slurm's programs (a sandbox is started), Chromium, and `pip install rich selenium`.
"""

from __future__ import annotations

import os
import subprocess
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
        page(root)
        subprocess.run([SHOAL, "cancel", "*", "--yes", "-q"], check=True, stdout=subprocess.DEVNULL)


def page(root: Path) -> None:
    """The page with a running run's curves, as Chromium draws it."""
    from selenium import webdriver

    from shoal.observe.queue_cache import QueueCache
    from shoal.views.web.api import DashboardData
    from shoal.views.web.server import DashboardServer

    home = str(root / ".shoal")
    server = DashboardServer(DashboardData(home, QueueCache(home)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = webdriver.ChromeOptions()
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        for word in (*flags.split(), "disable-component-update", "disable-sync", f"user-data-dir={profile}"):
            options.add_argument(f"--{word}")
        options.add_argument("--window-size=1280,800")
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
        try:
            browser.get(server.link)
            time.sleep(3)
            for key in ("j", "\ue007", "3"):
                webdriver.ActionChains(browser).send_keys(key).perform()
                time.sleep(1)
            browser.save_screenshot(str(HERE / "images" / "page.png"))
        finally:
            browser.quit()
            server.shutdown()


if __name__ == "__main__":
    main()
