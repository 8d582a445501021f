"""``python -m fastfuse``."""

import sys

from fastfuse.cli.main import main

sys.exit(main())
