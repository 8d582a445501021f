"""Keeps a failure that repeats from filling the log: each class of failures gets at most one line in 30 s."""

import logging
from dataclasses import dataclass, field

import trio

__all__ = ["EVERY_S", "RepeatedFailures"]

# The least time between two lines of one class.
EVERY_S = 30.0
# Names that a summary tells apart, and classes that are kept: a server chooses the words of its refusals.
_MOST_NAMES = 10_000
_MOST_CLASSES = 100


@dataclass(slots=True)
class _Class:
    told_s: float
    # Failures since then, and the objects that they were of.
    untold: int = 0
    names: set[str] = field(default_factory=set)


class RepeatedFailures:
    """Logs the first failure of each class in full, and every 30 s how many others there were.

    It belongs to one trio run. A task of its own waits for the next summary, and only while one is owed.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        # The class told longest ago is first.
        self._classes: dict[str, _Class] = {}
        self._is_running = False

    def tell(self, kind: str, name: str, line: str) -> bool:
        """Log `line`, or only count it if its class `kind` had a line in the last 30 s; return whether it was logged.

        `name` is the object that the failure is of.
        """
        now_s = trio.current_time()
        known = self._classes.get(kind)
        if known is None or (not known.untold and now_s >= known.told_s + EVERY_S):
            self._log.warning("%s", line)
            self._told(kind, now_s)
            return True
        known.untold += 1
        if len(known.names) < _MOST_NAMES:
            known.names.add(name)
        if not self._is_running:
            self._is_running = True
            trio.lowlevel.spawn_system_task(self._summarise)
        return False

    def _told(self, kind: str, now_s: float) -> None:
        self._classes.pop(kind, None)
        self._classes[kind] = _Class(now_s)
        if len(self._classes) > _MOST_CLASSES:
            del self._classes[next(iter(self._classes))]

    async def _summarise(self) -> None:
        try:
            while owed := next((one for one in self._classes.items() if one[1].untold), None):
                kind, failures = owed
                if failures.told_s + EVERY_S > trio.current_time():
                    await trio.sleep_until(failures.told_s + EVERY_S)
                    continue
                self._log.warning(
                    "%s: %d more in the last %.0f s, of %s%d %s",
                    kind,
                    failures.untold,
                    trio.current_time() - failures.told_s,
                    "at least " if len(failures.names) == _MOST_NAMES else "",
                    len(failures.names),
                    "object" if len(failures.names) == 1 else "objects",
                )
                self._told(kind, trio.current_time())
        finally:
            self._is_running = False
