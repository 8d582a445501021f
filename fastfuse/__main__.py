"""The program ``fastfuse``, and ``python -m fastfuse``."""

import sys

# As shells report it: 128 and the signal. `cli.messages` has it, too, and may not be loaded yet.
_INTERRUPTED = 130


def main() -> int:
    """Run the command line and return the exit code; Ctrl-C leaves no traceback, even while it is being loaded."""
    try:
        from fastfuse.cli.startup import loading

        with loading():
            from fastfuse.cli.main import main as run
        return run()
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
