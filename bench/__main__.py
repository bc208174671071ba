"""`python -m bench`: the same commands as `gateway bench`."""

import sys

from bench.cli import main

sys.exit(main())
