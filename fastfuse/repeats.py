"""Keeps a failure that repeats from filling the log: each class of failures gets at most one line in 30 s.

A server chooses the words of its refusals, and so how many classes there are. Those beyond a number share a line.
"""

import logging
from dataclasses import dataclass, field
from math import inf

import trio

# The least time between two lines of one class.
EVERY_S = 30.0
# Names that a summary tells apart, and classes that have lines of their own.
_MOST_NAMES = 10_000
_MOST_CLASSES = 20
_OTHERS = "other failures"


@dataclass(slots=True)
class _Class:
    told_s: float
    # Failures since then, and the objects that they were of.
    untold: int = 0
    names: set[str] = field(default_factory=set)


class RepeatedFailures:
    """Logs the first failure of each class in full, and every 30 s and at the end how many others there were.

    It belongs to one trio run. A task of its own waits for the next summary, and only while one is owed.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        # The class told longest ago is first.
        self._classes: dict[str, _Class] = {}
        self._is_running = False
        # When the last line was logged.
        self.told_s = -inf

    def tell(self, kind: str, name: str, line: str, bug: Exception | None = None) -> None:
        """Log `line`, or only count it if its class `kind` had a line in the last 30 s.

        `name` is the object that the failure is of. A `bug` is logged as an error, with its traceback.
        """
        now_s = trio.current_time()
        kind = self._class_of(kind, now_s)
        known = self._classes.get(kind)
        if known is None or (not known.untold and now_s >= known.told_s + EVERY_S):
            self._log.log(logging.ERROR if bug else logging.WARNING, "%s", line, exc_info=bug)
            self._told(kind, now_s)
            return
        known.untold += 1
        if len(known.names) < _MOST_NAMES:
            known.names.add(name)
        if not self._is_running:
            self._is_running = True
            trio.lowlevel.spawn_system_task(self._summarise)

    def forget_untold(self) -> None:
        """Owe no summary of the failures until now: whoever tells of their end has counted them."""
        for failures in self._classes.values():
            failures.untold = 0
            failures.names.clear()

    def _class_of(self, kind: str, now_s: float) -> str:
        """Return `kind` if it has a line of its own, or gets one in place of a class that owes none."""
        if kind not in self._classes and len(self._classes) >= _MOST_CLASSES:
            oldest, failures = next(iter(self._classes.items()))
            if failures.untold or now_s < failures.told_s + EVERY_S:
                return _OTHERS
            del self._classes[oldest]
        return kind

    def _told(self, kind: str, now_s: float) -> None:
        self.told_s = now_s
        self._classes.pop(kind, None)
        self._classes[kind] = _Class(now_s)

    async def _summarise(self) -> None:
        try:
            while owed := next((one for one in self._classes.items() if one[1].untold), None):
                kind, failures = owed
                if failures.told_s + EVERY_S > trio.current_time():
                    await trio.sleep_until(failures.told_s + EVERY_S)
                    continue
                self._tell_untold(kind, failures)
        finally:
            self._is_running = False
            # The run ends before they are due.
            for kind, failures in [*self._classes.items()]:
                if failures.untold:
                    self._tell_untold(kind, failures)

    def _tell_untold(self, kind: str, failures: _Class) -> None:
        now_s = trio.current_time()
        self._log.warning(
            "%s: %d more in the last %.0f s, of %s%d %s",
            kind,
            failures.untold,
            now_s - failures.told_s,
            "at least " if len(failures.names) == _MOST_NAMES else "",
            len(failures.names),
            "object" if len(failures.names) == 1 else "objects",
        )
        self._told(kind, now_s)
