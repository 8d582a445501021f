"""``python -m bench.soak``."""

import sys

from bench.soak.command import main

sys.exit(main())
