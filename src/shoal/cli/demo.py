"""Run a small example on this machine: a training that crashes, is resumed, post-trained with three seeds, evaluated.

shoal demo                      in a new folder under the system's temporary one
shoal demo --dir my-first       where you can look around afterwards
"""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, help="copy the example project there (must be new or empty)")


def run(args: argparse.Namespace) -> None:
    import os
    import shutil
    import sys
    import tempfile

    from shoal.demo import copy_project, run_demo

    target = args.dir.absolute() if args.dir else Path(tempfile.mkdtemp(prefix="shoal-demo-"))
    copy_project(target)
    run_demo(target, print)
    shoal = "shoal" if shutil.which("shoal") else os.path.abspath(sys.argv[0])
    print(f"\nLook around:\n  cd {target}\n  {shoal} logs 011_posttrain1_1\n  {shoal} report 001_example")
