"""``python -m bench.modes``. Reader processes import this module, too, so what it does is elsewhere."""

if __name__ == "__main__":
    import sys

    from bench.modes.command import main

    sys.exit(main())
