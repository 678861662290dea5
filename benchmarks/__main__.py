"""Run all benchmarks, or those named: python -m benchmarks spine."""

import pkgutil
import sys
from importlib import import_module

import benchmarks

names = sys.argv[1:] or sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_"))
del sys.argv[1:]  # a benchmark's own flags are for `python -m benchmarks.NAME`
for name in names:
    print(f"\n## {name}\n", flush=True)
    import_module(f"benchmarks.{name}").main()
