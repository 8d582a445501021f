"""Indexes that outlive the process: in a file, or in S3; and one in S3 that hosts share.

Index files are read and written as a whole. A mapped file that shrinks kills its reader (SIGBUS); a copy in memory
lives as long as the mount. Every index that is read back is checked byte by byte, and against the source it is for.

Hosts share one listing of a source through an object in S3, without a server of their own. The first host claims the
listing with a conditional write of a second object, the claim. It lists, writes the index on the condition that the
object is still as it was seen, and releases the claim. The other hosts poll until the index is young enough. A claim
that its holder no longer renews expires, and the next host takes it over. Ages are those of the service's own clock:
the Date of a reply less the Last-Modified in it. No clock of a host counts.

The claim only saves listings. Whoever holds it, one conditional write of the index succeeds, so all hosts show the same
listing. A service without conditional writes is found out by three, and then each host lists for itself.
"""

import logging
import os
import random
import stat
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import trio

from fastfuse import awake
from fastfuse.errors import ConditionsUnsupportedError, ConfigurationError, FastfuseError, WriteConflictError
from fastfuse.index.inodes.columns import are_made
from fastfuse.index.origin import KEY_NAME_PREFIX, SourceKind
from fastfuse.index.snapshot import OldFormatError, Snapshot, check_size, verify_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.metrics import Counters
from fastfuse.regular_files import open_regular
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.retries import Retries
from fastfuse.s3.upload import NO_OBJECT, ObjectState, ObjectWriter, refused_condition, upload
from fastfuse.s3.whole import read_into

_log = logging.getLogger(__name__)

_STEP_BYTES = 64 << 20
_MANIFESTS = (SourceKind.MANIFEST, SourceKind.AUGMENTED_MANIFEST)


def copy_index(place: Path, fd: int, *, is_own: bool = False) -> bool:
    """Copy the index in `place` into the empty file `fd`, and return whether to take it if it is sound.

    If it `is_own`, a file that this user makes, that is not so where it is missing (nothing is copied), or where others
    could have written it.

    Raises:
        ConfigurationError: the file does not exist, cannot be read, or is too large.
    """
    is_ours = True
    try:
        with os.fdopen(open_regular(place), "rb") as file:
            status = os.fstat(file.fileno())
            check_size(f"the index {place}", status.st_size)
            if is_own and (status.st_uid not in {0, os.geteuid()} or status.st_mode & 0o022):
                is_ours = False
                _log.warning(
                    "the index %s is made anew: it is of user %d with mode %03o, so others may have written it",
                    *(place, status.st_uid, stat.S_IMODE(status.st_mode)),
                )
            _copy_into(fd, file)
    except OSError as error:
        if is_own and isinstance(error, FileNotFoundError):
            return False
        raise ConfigurationError(
            f"the index {place} cannot be read: {error.strerror or error}", hint="fastfuse index makes one"
        ) from error
    return is_ours


def load_index(
    place: Path | S3Uri,
    session: S3Session,
    source: S3Uri,
    fd: int,
    views: Collection[str] = ("",),
    counters: Counters | None = None,
) -> Snapshot:
    """Verify the index of `source` in one of `views` that `copy_index` took from `place`; fetch it from S3 first.

    `counters` count the requests that were tried again.

    Raises:
        ConfigurationError: it is damaged or no index, or is one of another source; an `OldFormatError` is of this one.
        SourceError, AccessError, ServiceError: S3 does not return it.
    """
    if isinstance(place, S3Uri):
        awake.run(_download, place, session, fd, Retries(counters))
    try:
        return verify_index(fd, source, views)
    except ConfigurationError as error:  # an `OldFormatError` stays one
        raise type(error)(f"{place}: {error}", hint=error.hint) from error


def store_index(place: Path | S3Uri, connection: ConnectionConfig, fd: int) -> None:
    """Write the index in `fd` to `place`, all or nothing.

    Raises:
        ConfigurationError: the file cannot be written.
        SourceError, AccessError, ServiceError: S3 does not accept it.
    """
    if isinstance(place, S3Uri):
        awake.run(_upload, place, connection, fd)
        return
    try:
        replace_file(place, fd)
    except OSError as error:
        raise ConfigurationError(f"the index {place} cannot be written: {error.strerror or error}") from error


async def _download(place: S3Uri, session: S3Session, fd: int, retries: Retries) -> None:
    async with aclosing(S3Client(session.without_key(), retries=retries)) as client:
        ref = await client.head(place.bucket, place.path)
        check_size(f"the index {place}", ref.size_bytes)
        os.ftruncate(fd, ref.size_bytes)
        await read_into(client, ref, fd)


async def _upload(place: S3Uri, connection: ConnectionConfig, fd: int) -> None:
    async with aclosing(S3Client(S3Session(connection))) as client:
        await upload(client, fd, place.bucket, place.path)


def verify_index(fd: int, source: S3Uri, views: Collection[str] = ("",)) -> Snapshot:
    """Return the snapshot in `fd`: one of `source` in one of `views`, which holds keys of that prefix only.

    Raises:
        ConfigurationError: it is damaged or no index, or not one of `source`.
    """
    try:
        snapshot = verify_snapshot(fd)
    except OldFormatError as error:
        _check_source(error.source, source)
        raise
    _check_source(snapshot.source, source)
    if snapshot.view not in views:
        raise ConfigurationError(
            f"it is an index of {source} as {_described(snapshot.view)}, not as {_described(max(views, key=len))}",
            hint="give --source-type, --attribute-name, --shard and --shard-by as they were given to 'fastfuse index'",
        )
    if snapshot.view.startswith(_MANIFESTS):
        return snapshot  # a manifest may name any key
    metadata = snapshot.table.metadata
    if are_made(snapshot.table.columns["kinds"]).any():
        raise ConfigurationError(
            f"it is an index of {source} and has contents of files of its own, as only an index of a manifest may",
            hint="make it again with 'fastfuse index'",
        )
    if metadata.bucket != source.bucket or not _lies_in(snapshot, source):
        prefix = S3Uri(metadata.bucket, metadata.key_prefix)
        raise ConfigurationError(
            f"it says that it is an index of {source} and holds keys of {prefix}",
            hint="make it again with 'fastfuse index'",
        )
    return snapshot


def _check_source(found: str, source: S3Uri) -> None:
    if found.rstrip("/") != str(source).rstrip("/"):
        raise ConfigurationError(f"it is an index of {found}, not of {source}")


def _described(view: str) -> str:
    return view or "a whole prefix"


def _lies_in(snapshot: Snapshot, source: S3Uri) -> bool:
    """Return whether all keys lie in the folder `source` or are the one object of that name (N1).

    In the view of a key name prefix, the keys may also begin with it in any other way.
    """
    table, path = snapshot.table, source.path
    prefix = table.metadata.key_prefix
    if prefix == source.folder or (path and prefix == f"{path.rstrip('/')}/"):
        return True
    begun = [prefix.encode() + name for name, _ in table.children(table.inode(0))]
    if snapshot.view.startswith(KEY_NAME_PREFIX):
        return all(name.startswith(path.encode()) for name in begun)
    return all(name == path.encode() for name in begun)


def _copy_into(fd: int, file: BinaryIO) -> None:
    """Copy all of `file` to the beginning of `fd`."""
    os.lseek(fd, 0, os.SEEK_SET)
    offset = 0
    while sent := os.sendfile(fd, file.fileno(), offset, _STEP_BYTES):
        offset += sent


def replace_file(path: Path, fd: int) -> None:
    """Replace `path` (mode 0600) by what `fd` holds, all or nothing; a process with the old file open keeps it.

    Raises:
        OSError: it cannot be written; the old file is unchanged.
    """
    # A temporary name for each writer: two may write the same index.
    made, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(made, "wb") as file, open(f"/proc/self/fd/{fd}", "rb") as source:
            _copy_into(file.fileno(), source)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


CLAIM_SUFFIX = ".claim"
# A claim of this age has expired. Its holder writes it anew three times in that time.
EXPIRY_S = 30.0
RENEWAL_S = 10.0
_WRITE_DEADLINE_S = 10.0
# A thousand waiting hosts ask 1,000 times a second; S3 answers 5,500 a second for a prefix.
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 3.0

# A listing, and the number of requests that it took.
Listed = tuple[Snapshot, int]


@dataclass(slots=True)
class SharedIndex:
    """The index of `source` that hosts share at `place`; one of another view than `views` is an error.

    `counters` count the requests that were tried again.
    """

    place: S3Uri
    source: S3Uri
    session: S3Session
    views: Collection[str]
    max_age_s: float
    counters: Counters | None = None
    # Each host shows a shard of it, and another listing has other shards.
    is_sharded: bool = False
    # The ETags of the index that was seen last, and of one in an earlier format, which is as good as none.
    _seen_etag: str = field(default=NO_OBJECT, init=False)
    _outdated_etag: str = field(default=NO_OBJECT, init=False)
    # `ObjectWriter.has_bare_etags`, once this host has written a claim.
    _has_bare_etags: bool = field(default=False, init=False)

    def open(self, fd: int, make: Callable[[], Listed]) -> Listed:
        """Write the index to the empty file `fd`: the shared one if it is young enough, or what `make` writes there.

        Raises:
            ConfigurationError: what lies at `place` is no index of `source`; it is not replaced, whatever its age.
            FastfuseError: as `load_index`, `store_index` and `make`.
        """
        while True:
            try:
                turn = awake.run(self._wait_for_turn)
            except ConditionsUnsupportedError as error:
                _log.warning("this host lists %s for itself: %s", self.source, error)
                return make()
            if turn is None:
                try:
                    return self._load(fd), 0
                except OldFormatError:
                    self._outdated_etag = self._seen_etag
                    os.ftruncate(fd, 0)
                    continue
            claim_etag, replaces = turn
            with self._held(claim_etag):
                if replaces != NO_OBJECT:
                    with suppress(OldFormatError):
                        self._load(fd)
                    os.ftruncate(fd, 0)
                    if self.is_sharded:
                        _log.warning(
                            "%s is too old, and %s is listed anew: if a host still runs with a shard of the old "
                            "listing, objects may be in two shards or in none. Give each job an index of its own",
                            *(self.place, self.source),
                        )
                listed = make()
                try:
                    awake.run(self._write, fd, replaces)
                except WriteConflictError:
                    _log.info("another host has written %s meanwhile", self.place)
                    os.ftruncate(fd, 0)
                    continue
                _log.info("wrote %s for the other hosts", self.place)
                return listed

    def _load(self, fd: int) -> Snapshot:
        return load_index(self.place, self.session, self.source, fd, self.views, self.counters)

    @asynccontextmanager
    async def _objects(self, session: S3Session) -> AsyncIterator[tuple[ObjectWriter, ObjectWriter]]:
        """Yield what writes the index, and what writes the claim."""
        retries = Retries(self.counters)
        async with aclosing(S3Client(session, retries=retries)) as client, AsyncExitStack() as exits:
            index = ObjectWriter(client, exits, self.place.bucket, self.place.path, retries=retries)
            index.has_bare_etags = self._has_bare_etags
            yield index, index.beside(index.key + CLAIM_SUFFIX)

    async def _write(self, fd: int, replaces: str) -> None:
        async with self._objects(self.session) as (index, _):
            await index.write(fd, replaces=replaces)

    async def _put_claim(self, body: bytes, replaces: str) -> str:
        # A thread of its own calls this, while the listing uses the session.
        async with self._objects(self.session.beside()) as (_, claim):
            return await claim.put(body, replaces=replaces, deadline_s=_WRITE_DEADLINE_S)

    async def _wait_for_turn(self) -> tuple[str, str] | None:
        """Return the ETag of the claim, once this host holds it, and that of the index to replace (or `NO_OBJECT`).

        None means that the index is young enough.
        """
        pause_s, refused, has_told = FIRST_PAUSE_S, "", False
        async with self._objects(self.session) as (index, claim):
            while not self._see(await index.state()):
                held = await claim.state()
                # Never held, released (empty), or expired.
                if held is None or not held.size_bytes or held.age_s > EXPIRY_S:
                    replaces = held.etag if held else NO_OBJECT
                    try:
                        etag = await claim.put(_nonce(), replaces=replaces)
                    except WriteConflictError as error:
                        # Look at once: every release has the same ETag. A host that was faster holds the claim for some
                        # requests at least; one whose write is still under way (409) holds it after the pause.
                        now = await claim.state()
                        is_as_seen = replaces == (now.etag if now else NO_OBJECT)
                        if is_as_seen and replaces == refused:
                            if claim.has_bare_etags:
                                raise refused_condition() from error
                            claim.has_bare_etags = True
                        refused = replaces if is_as_seen else ""
                        _log.debug("another host has claimed the listing of %s at the same time", self.source)
                    else:
                        return await self._check_turn(index, claim, etag)
                else:
                    refused = ""
                    if not has_told:
                        has_told = True
                        _log.info("waiting for the listing of %s that another host makes", self.source)
                await trio.sleep(random.uniform(pause_s / 2, pause_s))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return None

    async def _check_turn(self, index: ObjectWriter, claim: ObjectWriter, etag: str) -> tuple[str, str] | None:
        """Return what `_wait_for_turn` does, now that this host has written the claim with this ETag."""
        etag = await claim.check_conditions(etag, _nonce)
        # Since the first look, another host may have written the index and released its claim.
        found = await index.state()
        if not self._see(found):
            self._has_bare_etags = claim.has_bare_etags
            return etag, found.etag if found else NO_OBJECT
        await claim.put(b"", replaces=etag)
        return None

    def _see(self, index: ObjectState | None) -> bool:
        """Note which index is there, and return whether it is young enough."""
        self._seen_etag = index.etag if index else NO_OBJECT
        return index is not None and index.age_s <= self.max_age_s and index.etag != self._outdated_etag

    @contextmanager
    def _held(self, claim_etag: str) -> Iterator[None]:
        """Renew the claim during the block, and release it at its end, however it ends."""
        ended = threading.Event()
        # A thread, because much of a listing's work leaves no room for other tasks.
        renewing = threading.Thread(target=self._renew, args=(claim_etag, ended), name="fastfuse-claim")
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()

    def _renew(self, claim_etag: str, ended: threading.Event) -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(RENEWAL_S)
            body = b"" if is_last else _nonce()
            try:
                claim_etag = awake.run(self._put_claim, body, claim_etag)
            except WriteConflictError:
                return
            except FastfuseError as error:
                _log.warning("the claim to list %s was not written anew: %s", self.source, error)


def _nonce() -> bytes:
    """Return a body that makes the ETag of each write another one."""
    return uuid.uuid4().hex.encode()
