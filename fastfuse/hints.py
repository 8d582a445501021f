"""Announce in which order files of a mount will be opened, so that they are fetched ahead although it is shuffled.

For training scripts, in three ways; each needs nothing but the standard library::

    with fastfuse.hints.order(paths, "/mnt/train"):        # around whatever opens them
        ...
    sampler = fastfuse.hints.HintedSampler(sampler, paths, "/mnt/train")   # for PyTorch's DataLoader(sampler=...)
    $ shuf files | fastfuse hint /mnt/train                # from a shell

A hint never fails a training: without a mount, without permission, out of reach (the mount must be in the same network
namespace) the files are read all the same, only not ahead, and one log line says so.
"""

import os
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, Protocol, Self, TypeVar

from fastfuse.filesystem.mounting.mountpoint import find_mount
from fastfuse.filesystem.talking.hint_sender import AnyPath, HintSender, Meanwhile

__all__ = ["HintedSampler", "hand_over", "order"]

# The samples that are drawn and announced before a data loader asks for them: as many files as may be fetched ahead
# (readahead/shelves.py). A mount takes more before their readers open any, so it never waits for a sampler.
_LOOK_AHEAD_SAMPLES = 16 << 10
# The samples that wait to be sent. A loader may draw a whole epoch before its workers open a file; beyond this number
# the samples of a longer epoch are not announced, so that an endless sampler that nobody hears takes no more memory.
_MAX_UNSENT_SAMPLES = 1 << 20


@contextmanager
def order(paths: Iterable[AnyPath], mountpoint: AnyPath) -> Iterator[None]:
    """Within the block `paths` are fetched ahead, in this order, as far as the mount's memory allows.

    They are absolute below `mountpoint`, or relative to it; what is not there is passed over. They are taken one by one
    from a thread of their own, no faster than files are opened, so an endless iterator will do.

    Raises:
        NotADirectoryError: `mountpoint` is none. Nothing else is raised, before, in or after the block.
    """
    sender = HintSender(paths, _directory(mountpoint))
    sender.start()
    try:
        yield
    finally:
        sender.close()


def hand_over(paths: Iterable[AnyPath], mountpoint: AnyPath, *, meanwhile: Meanwhile = None) -> None:
    """Announce `paths` as `order` does, and return when the last is taken; the order then stands until the worker ends.

    `meanwhile` is called with the place of the mount after each 20 s in which the turn of this order has not come, and
    may raise an error.

    Raises:
        MountError: there is no mount of fastfuse, nobody listens, or it does not listen to this user.
    """
    sender = HintSender(paths, Path(os.path.abspath(os.fsdecode(mountpoint))), meanwhile)
    try:
        sender.send()
        sender.finish()
    finally:
        sender.close()


class _Paths(Protocol):
    """A list, an array, a mapping: whatever knows the path of a sample."""

    def __getitem__(self, sample: Any, /) -> Any: ...  # noqa: ANN401 -- a path, be it in an array's own type


_Sample = TypeVar("_Sample")


class HintedSampler(Generic[_Sample]):
    """A PyTorch sampler that announces the files of an epoch in the order in which it draws them.

    ``DataLoader(dataset, sampler=HintedSampler(sampler, paths, mountpoint), num_workers=...)`` announces
    ``paths[sample]`` for each sample, or each in a list of them, as a `BatchSampler` draws. The first 16,384 samples of
    `sampler` are drawn and announced at the start of the epoch, and then one more, or one more list, for each that the
    loader takes, so an endless sampler will do. Whatever else `sampler` has, such as ``set_epoch``, is there as well,
    except ``state_dict``. One epoch at a time: the next one withdraws what is left of the last.

    Raises:
        NotADirectoryError: `mountpoint` is none.
    """

    def __new__(cls, sampler: Iterable[_Sample] = (), *_: object, **__: object) -> Self:
        """Return a DistributedSampler if `sampler` is one: Lightning divides the samples of any other between ranks."""
        distributed = getattr(sys.modules.get("torch.utils.data"), "DistributedSampler", None)
        kind: Any = cls
        if distributed is not None and isinstance(sampler, distributed):
            # No name leads to the class that is made here.
            own: dict[str, Any] = {"__reduce__": lambda self: (cls.__new__, (cls, self._sampler), vars(self))}
            if not hasattr(cls, "set_epoch"):  # or `distributed` has it for itself
                own["set_epoch"] = property(attrgetter("_sampler.set_epoch"))
            kind = type(cls.__name__, (cls, distributed), own)
        made: Self = super().__new__(kind)
        return made

    def __init__(self, sampler: Iterable[_Sample], paths: _Paths, mountpoint: AnyPath) -> None:
        self._sampler = sampler
        self._paths = paths
        self._mountpoint = _directory(mountpoint)
        self._withdraw: weakref.finalize[Any, Any] | None = None

    def __iter__(self) -> Iterator[_Sample]:
        samples = iter(self._sampler)
        ahead, wanted = deque[_Sample](), _LOOK_AHEAD_SAMPLES
        for drawn in samples:
            ahead.append(drawn)
            wanted -= len(_samples_of(drawn))
            if wanted <= 0:
                break
        if self._withdraw is not None:
            self._withdraw()
        epoch = _Epoch(self._paths, self._mountpoint)
        # Not at the end of the iteration: a loader draws long before its workers have opened what it drew.
        self._withdraw = weakref.finalize(self, epoch.withdraw)
        epoch.announce(ahead)
        try:
            if wanted <= 0:
                for sample in samples:
                    epoch.announce([sample])
                    ahead.append(sample)
                    yield ahead.popleft()
            epoch.end()
            yield from ahead
        except BaseException:  # GeneratorExit, too
            epoch.withdraw()
            raise

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type] # a TypeError says so of one without a length

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the sampler has
        # `_sampler` is missing in an object that is just being unpickled. The state of `sampler` is ahead of its
        # loader, and a loader that finds no state counts the samples itself (torchdata).
        if name.startswith("_") or name in {"state_dict", "load_state_dict"}:
            raise AttributeError(name)
        return getattr(self._sampler, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:  # accelerate gives the samplers of all ranks the same `generator`
            setattr(self._sampler, name, value)


class _Epoch:
    """The samples of one epoch on their way from the thread that draws them to the one that sends their paths."""

    def __init__(self, paths: _Paths, mountpoint: Path) -> None:
        # None at its end.
        self._unsent: SimpleQueue[tuple[Any] | None] = SimpleQueue()
        self._sender = HintSender((paths[sample] for (sample,) in iter(self._unsent.get, None)), mountpoint)
        self._sender.start()

    def announce(self, drawn: Iterable[object]) -> None:
        for one in drawn:
            for sample in _samples_of(one):
                if self._unsent.qsize() < _MAX_UNSENT_SAMPLES:
                    self._unsent.put((sample,))

    def end(self) -> None:
        """Say that no sample follows: the sender holds back up to 255 paths while it waits for the next."""
        self._unsent.put(None)

    def withdraw(self) -> None:
        self.end()
        self._sender.close()


def _samples_of(drawn: object) -> Sequence[object]:
    """Return the samples of what a sampler drew: a list of a batch sampler, or one sample."""
    return drawn if isinstance(drawn, list) else (drawn,)


def _directory(mountpoint: AnyPath) -> Path:
    place = Path(os.path.abspath(os.fsdecode(mountpoint)))
    # Whatever is mounted is one, and is not looked at: it may be dead.
    if find_mount(place) is None and not place.is_dir():
        raise NotADirectoryError(f"{place} is no directory, so nothing can be mounted there")
    return place
