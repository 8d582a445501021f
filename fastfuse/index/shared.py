"""Hosts that share one listing of a source through an object in S3, without a server of their own.

The first host claims the listing with a conditional write of a second object, the claim. It lists, writes the index on
the condition that the object is still as it was seen, and releases the claim. The other hosts poll until the index is
young enough. A claim that its holder no longer renews expires, and the next host takes it over. Ages are those of the
service's own clock: the Date of a reply less the Last-Modified in it. No clock of a host counts.

The claim only saves listings. Whoever holds it, one conditional write of the index succeeds, so all hosts show the same
listing. A service without conditional writes is found out by one, and then each host lists for itself.
"""

import logging
import os
import random
import threading
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from fastfuse.errors import ConditionsUnsupportedError, FastfuseError, WriteConflictError
from fastfuse.index.saved import load_index
from fastfuse.index.snapshot import Snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.upload import NO_OBJECT, ObjectState, ObjectWriter

__all__ = ["CLAIM_SUFFIX", "EXPIRY_S", "FIRST_PAUSE_S", "LONGEST_PAUSE_S", "RENEWAL_S", "SharedIndex"]

_log = logging.getLogger(__name__)

CLAIM_SUFFIX = ".claim"
# A claim of this age has expired. Its holder writes it anew three times in that time.
EXPIRY_S = 30.0
RENEWAL_S = 10.0
_WRITE_DEADLINE_S = 10.0
# A thousand waiting hosts ask 1,000 times a second; S3 answers 5,500 a second for a prefix.
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 3.0

T = TypeVar("T")
# A listing, and the number of requests that it took.
Listed = tuple[Snapshot, int]


@dataclass(frozen=True, slots=True)
class _Claim:
    """The right to list: the ETag of the claim, and of the index that the listing replaces (or `NO_OBJECT`)."""

    etag: str
    replaces: str


@dataclass(frozen=True, slots=True)
class SharedIndex:
    """The index of `source` that hosts share at `place`; one of another view than `views` is an error."""

    place: S3Uri
    source: S3Uri
    connection: ConnectionConfig
    views: Collection[str]
    max_age_s: float

    def open(self, fd: int, make: Callable[[], Listed]) -> Listed:
        """Write the index to the empty file `fd`: the shared one if it is young enough, or what `make` writes there.

        Raises:
            ConfigurationError: what lies at `place` is no index of `source`; it is not replaced, whatever its age.
            FastfuseError: as `load_index`, `store_index` and `make`.
        """
        while True:
            try:
                claim = trio.run(self._with_objects, self._wait_for_turn)
            except ConditionsUnsupportedError as error:
                _log.warning("this host lists %s for itself: %s", self.source, error)
                return make()
            if claim is None:
                return load_index(self.place, S3Session(self.connection), self.source, fd, self.views), 0
            with self._held(claim):
                if claim.replaces != NO_OBJECT:
                    load_index(self.place, S3Session(self.connection), self.source, fd, self.views)
                    os.ftruncate(fd, 0)
                listed = make()
                try:
                    trio.run(self._with_objects, partial(_write, fd, claim.replaces))
                except WriteConflictError:
                    _log.info("another host has written %s meanwhile", self.place)
                    os.ftruncate(fd, 0)
                    continue
                _log.info("wrote %s for the other hosts", self.place)
                return listed

    async def _with_objects(self, act: Callable[[ObjectWriter, ObjectWriter], Awaitable[T]]) -> T:
        """Return the result of `act` on the index and on the claim."""
        bucket, key = self.place.bucket, self.place.path
        async with aclosing(S3Client(S3Session(self.connection))) as client, AsyncExitStack() as exits:
            region = await client.region(bucket)
            index = ObjectWriter(client.session, exits, bucket, key, region)
            claim = ObjectWriter(client.session, exits, bucket, key + CLAIM_SUFFIX, region)
            return await act(index, claim)

    async def _wait_for_turn(self, index: ObjectWriter, claim: ObjectWriter) -> _Claim | None:
        """Return the claim once this host holds it, or None once the index is young enough."""
        pause_s = FIRST_PAUSE_S
        while True:
            found = await index.state()
            if self._is_young(found):
                return None
            held = await claim.state()
            if _is_free(held):
                try:
                    etag = await claim.put(_nonce(), replaces=held.etag if held else NO_OBJECT)
                except WriteConflictError:
                    _log.debug("another host has claimed the listing of %s at the same time", self.source)
                else:
                    await _check_conditions(claim)
                    # Since the first look, another host may have written the index and released its claim.
                    found = await index.state()
                    if not self._is_young(found):
                        return _Claim(etag, found.etag if found else NO_OBJECT)
                    await claim.put(b"", replaces=etag)
                    return None
            elif pause_s == FIRST_PAUSE_S:
                _log.info("waiting for the listing of %s that another host makes", self.source)
            await trio.sleep(random.uniform(pause_s / 2, pause_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _is_young(self, index: ObjectState | None) -> bool:
        return index is not None and index.age_s <= self.max_age_s

    @contextmanager
    def _held(self, claim: _Claim) -> Iterator[None]:
        """Renew the claim during the block, and release it at its end, however it ends."""
        ended = threading.Event()
        # A thread, because much of a listing's work leaves no room for other tasks.
        renewing = threading.Thread(target=self._renew, args=(claim.etag, ended), name="fastfuse-claim")
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()

    def _renew(self, etag: str, ended: threading.Event) -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(RENEWAL_S)
            body = b"" if is_last else _nonce()
            try:
                etag = trio.run(self._with_objects, partial(_put_claim, body, etag))
            except WriteConflictError:
                return
            except FastfuseError as error:
                _log.warning("the claim to list %s was not written anew: %s", self.source, error)


async def _write(fd: int, replaces: str, index: ObjectWriter, _: ObjectWriter) -> None:
    await index.write(fd, replaces=replaces)


async def _put_claim(body: bytes, replaces: str, _: ObjectWriter, claim: ObjectWriter) -> str:
    return await claim.put(body, replaces=replaces, deadline_s=_WRITE_DEADLINE_S)


async def _check_conditions(claim: ObjectWriter) -> None:
    """Raise `ConditionsUnsupportedError` if the service makes an object on the condition that there is none."""
    try:
        await claim.put(_nonce(), replaces=NO_OBJECT)
    except WriteConflictError:
        return
    await claim.put(b"")
    raise ConditionsUnsupportedError("The service ignores the conditions of writes (If-None-Match).")


def _is_free(claim: ObjectState | None) -> bool:
    """Return whether the claim was never held, is released (empty), or has expired."""
    return claim is None or not claim.size_bytes or claim.age_s > EXPIRY_S


def _nonce() -> bytes:
    """Return a body that makes the ETag of each write another one."""
    return uuid.uuid4().hex.encode()
