"""For the tests of the sandbox: its command as a person calls it."""

from __future__ import annotations

import os
import subprocess
import sys

CLI = [sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main())", "sandbox"]


def shoal_sandbox(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *words], env={**os.environ, **env}, capture_output=True, text=True, timeout=300)
