"""What a process has open, for tests of code that has to leave nothing open."""

import gc
import os


def open_descriptors(pid: int | str = "self") -> dict[int, str]:
    """What each descriptor of a process leads to, but for the one that looks.

    What tests before left as garbage in this process is collected first: a connection in it could be closed at any time
    later, and be missing from what was open before.
    """
    if pid == "self":
        gc.collect()
    leads_to = {}
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            leads_to[int(entry)] = os.readlink(f"/proc/{pid}/fd/{entry}")
        except FileNotFoundError:
            continue
    return leads_to
