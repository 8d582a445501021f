"""The disturbances of a soak, one after the other, in an order and with lengths that a seed decides.

Each says which errors the retry policy allows readers while it lasts. It lasts for less than the deadline of a read, so
what is tried until then allows none.
"""

import errno
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench import machine
from bench.s3server.faults import (
    EXPIRED_TOKEN,
    INTERNAL_ERROR,
    SLOW_DOWN,
    Action,
    Delay,
    FaultRule,
    Limit,
    Reset,
    Stall,
    Truncate,
    WrongEtag,
    WrongLength,
    WrongRange,
)
from bench.soak.mounting import SoakMount
from bench.soak.server import SoakServer
from bench.soak.squeezing import MemoryGroup
from fastfuse.errors import BadReplyError, FastfuseError
from fastfuse.filesystem.talking.control import request_refresh
from fastfuse.objects import ObjectRef
from fastfuse.s3.failures import Failure, Kind, read_error
from fastfuse.s3.retry_policy import UNTIL_DEADLINE, attempts

HANGS = "worker hangs"
SQUEEZED = "memory squeezed"

_POLL_S = 0.05
_WOKEN_AFTER_S = 1.5


@dataclass
class Scene:
    """What is disturbed, and by which chance; `length_s` is how long the disturbance at hand lasts."""

    mount: SoakMount
    server: SoakServer
    random: random.Random
    length_s: float = 0.0
    # None where the kernel's limits are not ours to set.
    group: MemoryGroup | None = None
    # Whether the kernel may be told to forget the pages of other file systems, too.
    may_drop_caches: bool = True
    findings: list[str] = field(default_factory=list)

    def last(self) -> None:
        """Let the disturbance last."""
        time.sleep(self.length_s)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """`run` begins a disturbance, lets it last and ends it. `allowed` names the errnos that readers may get."""

    run: Callable[[Scene], None]
    allowed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which a disturbance lasted."""

    name: str
    started_s: float
    ended_s: float


def _kill(scene: Scene) -> None:
    for _ in range(scene.random.choice((1, 1, 2))):
        with _worker(scene) as pid:
            os.kill(pid, signal.SIGKILL)
        scene.last()


@contextmanager
def _worker(scene: Scene) -> Iterator[int]:
    """Yield the pid of a worker that lives; it may end at any time."""
    while (pid := scene.mount.worker()) is None:
        time.sleep(_POLL_S)
    with suppress(ProcessLookupError):
        yield pid


def _stop(scene: Scene) -> None:
    """Stop a worker, and let it go on before the supervisor takes it for one that hangs."""
    with _worker(scene) as pid:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(min(_WOKEN_AFTER_S, scene.length_s))
        os.kill(pid, signal.SIGCONT)


def _hang(scene: Scene) -> None:
    """Stop a worker and leave it so: the supervisor replaces it."""
    with _worker(scene) as pid:
        os.kill(pid, signal.SIGSTOP)
        while scene.mount.worker() in (pid, None):
            time.sleep(_POLL_S)


def _squeeze(scene: Scene) -> None:
    if scene.group is not None:
        with scene.group.squeezed():
            scene.last()


def _server_dies(scene: Scene) -> None:
    scene.server.kill()
    scene.last()
    scene.server.start()


def _refresh(scene: Scene) -> None:
    """List again while objects have changed, and while the server answers some of the pages with an error."""
    scene.server.change_objects()
    time.sleep(scene.length_s / 2)
    try:
        with scene.server.fault(_rule(scene, INTERNAL_ERROR, 0.3, operation="ListObjectsV2")):
            request_refresh(scene.mount.root)
    except FastfuseError as error:
        scene.findings.append(f"a refresh failed: {error}")
    time.sleep(scene.length_s / 2)


def _forget_pages(scene: Scene) -> None:
    """Have the kernel forget the pages of files, and, where that is permitted, everything that it can forget."""
    for folder in ("small/00", "middle/00", "large/00"):
        for entry in os.scandir(scene.mount.root / folder):
            with suppress(OSError):  # what a file that cannot be opened means is the readers' matter
                _forget_file(Path(entry.path))
    if scene.may_drop_caches:
        machine.drop_caches()


def _forget_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _rule(scene: Scene, action: Action, share: float, operation: str = "GetObject", key: str = "") -> FaultRule:
    seed = scene.random.randrange(1 << 30)
    return FaultRule(action=action, operation=operation, key=key, probability=share, seed=seed)


def _fault(choose: Callable[[random.Random], Action], share: float, key: str = "") -> Callable[[Scene], None]:
    """Return what makes the server misbehave in a share of its replies; `choose` picks an action by chance."""

    def run(scene: Scene) -> None:
        with scene.server.fault(_rule(scene, choose(scene.random), share, key=key)):
            scene.last()

    return run


def _throttle(scene: Scene) -> None:
    with scene.server.fault(FaultRule(action=SLOW_DOWN, spared_per_s=scene.random.choice((20, 100, 500)))):
        scene.last()


def _offset(chance: random.Random) -> int:
    return chance.choice((0, 1, 4000, 70_000, 1 << 20))


def _allowed(kind: Kind) -> frozenset[str]:
    """Return the name of the errno that the policy gives a read for a failure of this kind, if not at its deadline."""
    if attempts(kind, is_read=True) == UNTIL_DEADLINE:
        return frozenset()
    error = read_error(Failure(kind=kind, detail=""), ObjectRef("bucket", "key", 1, ""))
    return frozenset({errno.errorcode[error.errno]})


# A reply that contradicts its request is not asked for again.
_BAD_REPLY = frozenset({errno.errorcode[BadReplyError.errno]})

DISTURBANCES = {
    "quiet": Disturbance(Scene.last),
    "worker killed": Disturbance(_kill),
    "worker stopped": Disturbance(_stop),
    HANGS: Disturbance(_hang),
    SQUEEZED: Disturbance(_squeeze),
    "server dies": Disturbance(_server_dies, _allowed(Kind.UNREACHABLE)),
    "refresh": Disturbance(_refresh),
    "pages forgotten": Disturbance(_forget_pages),
    "throttled": Disturbance(_throttle, _allowed(Kind.THROTTLED)),
    "refused with 503": Disturbance(_fault(lambda _: SLOW_DOWN, 0.6), _allowed(Kind.THROTTLED)),
    "refused with 500": Disturbance(_fault(lambda _: INTERNAL_ERROR, 1.0), _allowed(Kind.BUSY)),
    "slow first byte": Disturbance(_fault(lambda _: Delay(0.3), 0.5)),
    "slow bodies": Disturbance(_fault(lambda _: Limit(1e6), 0.5)),
    "stalled": Disturbance(_fault(lambda chance: Stall(_offset(chance)), 0.3), _allowed(Kind.BROKEN)),
    "reset": Disturbance(
        _fault(lambda chance: Reset(chance.choice((None, _offset(chance)))), 0.4), _allowed(Kind.BROKEN)
    ),
    "truncated": Disturbance(_fault(lambda chance: Truncate(_offset(chance)), 0.4), _allowed(Kind.BROKEN)),
    "length too long": Disturbance(_fault(lambda _: WrongLength(4096), 0.2), _BAD_REPLY),
    "length too short": Disturbance(_fault(lambda _: WrongLength(-10), 0.2), _BAD_REPLY),
    "wrong range": Disturbance(_fault(lambda _: WrongRange(4096), 0.2), _BAD_REPLY),
    "wrong ETag": Disturbance(_fault(lambda _: WrongEtag('"other"'), 0.5, "moving/*"), _allowed(Kind.CHANGED)),
    "tokens expired": Disturbance(_fault(lambda _: EXPIRED_TOKEN, 0.5), _allowed(Kind.EXPIRED)),
}


def disturb(scene: Scene, name: str) -> Window:
    """Run one disturbance and return when it lasted."""
    started_s = time.monotonic()
    DISTURBANCES[name].run(scene)
    return Window(name, started_s, time.monotonic())
