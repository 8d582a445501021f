"""``python -m fastfuse``."""

import sys

from fastfuse.cli import main

sys.exit(main())
