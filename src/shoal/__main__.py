"""`python -m shoal`, for a Python whose scripts are not on PATH."""

import sys

from shoal.cli import main

sys.exit(main())
