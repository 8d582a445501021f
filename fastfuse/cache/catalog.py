"""The index of a tier: which range of which object lies where. SQLite keeps it, for all processes of the node.

One transaction makes ranges known after their bytes were written, so an index never names bytes that no process wrote.
A power failure may still lose them, so each block has a digest, and nothing is synchronised for the sake of the data.
WAL lets readers go on while others write; a reader never waits, a writer for a moment.
"""

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from typing import NamedTuple

from fastfuse.objects import ObjectRef

# Raise it with any change of the schema, of the digests, or of what object IDs are made of.
FORMAT = 5
_APPLICATION_ID = 0x66667563
# One digest covers so much, and the smallest read costs it. 8 bytes for each add 0.003 % to what is kept.
BLOCK_BYTES = 256 << 10
# No part is longer (`--part-size`), so a look-up ends there.
MAX_EXTENT_BYTES = 64 << 20
# A process that commits holds others up for a millisecond. Only a program that does not belong here takes longer.
_WRITER_WAITS_S = 5.0
# A look-up waits only for whoever repairs what a killed process left; it holds up the loop.
_READER_WAITS_S = 0.01
NEVER = (1 << 63) - 1
# The victims that are listed at a time. The list is made anew once a 2,048th of the tier was asked for: of 10 TB, that
# is as many segments.
_LISTED, _LISTED_FOR_SHIFT = 64, 11

_SCHEMA = """
CREATE TABLE segments (
    id INTEGER PRIMARY KEY AUTOINCREMENT, size INTEGER NOT NULL, filled INTEGER NOT NULL DEFAULT 0,
    pinned INTEGER NOT NULL DEFAULT 0, born INTEGER NOT NULL, hit_at INTEGER NOT NULL, hits INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE extents (
    object INTEGER NOT NULL, start INTEGER NOT NULL, end INTEGER NOT NULL, segment INTEGER NOT NULL,
    offset INTEGER NOT NULL, digests BLOB NOT NULL, seed INTEGER NOT NULL, PRIMARY KEY (object, start)
) WITHOUT ROWID;
CREATE INDEX extents_of_segment ON extents (segment);
CREATE INDEX segments_with_room ON segments (id) WHERE filled < size AND NOT pinned;
CREATE TABLE room (bytes INTEGER NOT NULL);
INSERT INTO room VALUES (0);
CREATE TRIGGER segment_added AFTER INSERT ON segments BEGIN UPDATE room SET bytes = bytes + new.size; END;
CREATE TRIGGER segment_evicted AFTER DELETE ON segments BEGIN UPDATE room SET bytes = bytes - old.size; END;
CREATE TABLE clock (asked INTEGER NOT NULL);
INSERT INTO clock VALUES (0);
"""
# The return of a segment's bytes: how long it has gone without a hit, or how long they take on average, counted as if
# all of them had been hit once when they came. SQLite counts on with fractions where a product is beyond 63 bits.
_RETURN = "CAST(max(now - hit_at, (now - born) * size / (hits + size)) AS INTEGER)"

_EXTENT = "start, end, segment, offset, digests, seed"
# The rows that no damage has made none of ours.
_IS_SOUND = (
    "typeof(start) = 'integer' AND typeof(end) = 'integer' AND typeof(segment) = 'integer'"
    " AND typeof(offset) = 'integer' AND offset BETWEEN 0 AND 1 << 40 AND typeof(digests) = 'blob'"
    " AND typeof(seed) = 'integer'"
)


class Extent(NamedTuple):
    """A kept range ``[start, end)`` of an object, at `offset` of a segment, with a digest for each block.

    The digests begin with the 64 bits of `seed` and the range's place, so that whoever knows no object can check them.
    """

    start: int
    end: int
    segment: int
    offset: int
    digests: bytes
    seed: int = 0


class Segment(NamedTuple):
    """A file of a fixed size that is filled from its start."""

    id: int
    size_bytes: int
    filled_bytes: int


def identity(endpoint_url: str, ref: ObjectRef) -> tuple[int, int]:
    """Return 63 bits that name this version of an object, and 64 others that its digests begin with.

    The time counts, because some services give every version the same ETag. It counts in whole seconds, because that
    is what HEAD tells of the time in a listing.
    """
    text = f"{ref.key}\0{ref.etag}\0{ref.size_bytes}\0{ref.modified_ns // 10**9}".encode("utf-8", "surrogateescape")
    digest = sha256(identity_begin(endpoint_url, ref.bucket) + text).digest()
    return int.from_bytes(digest[:8]) >> 1, int.from_bytes(digest[8:16])


def identity_begin(endpoint_url: str, bucket: str, key_prefix: str = "") -> bytes:
    """Return the begin of what `identity` hashes, for all keys that begin with `key_prefix`."""
    return f"{endpoint_url}\0{bucket}\0{key_prefix}".encode("utf-8", "surrogateescape")


def pieces(extents: Sequence[Extent], start: int, end: int) -> list[tuple[Extent, int, int]]:
    """Return what each extent, in order of their starts, gives of ``[start, end)``, so that no byte is given twice."""
    found, at = [], start
    for extent in extents:
        piece_start, piece_end = max(at, extent.start), min(end, extent.end)
        if piece_start < piece_end:
            found.append((extent, piece_start, piece_end))
            at = piece_end
    return found


def gaps(there: Iterable[Extent | tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return what of ``[start, end)`` lies in none of the ranges that are `there`, in order."""
    missing, at = [], start
    for range_start, range_end in sorted(one[:2] for one in there):
        if at < min(range_start, end):
            missing.append((at, min(range_start, end)))
        at = max(at, range_end)
    return [*missing, *([(at, end)] if at < end else [])]


def connect(path: str) -> sqlite3.Connection:
    """Open the index at `path`, for any thread, in transactions that the caller begins.

    Raise `sqlite3.Error` if it cannot be opened, is none, or is of another version.
    """
    connection = sqlite3.connect(path, timeout=_WRITER_WAITS_S, isolation_level=None, check_same_thread=False)
    try:
        _check_format(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        # Survives any death of a process, and a power failure but for the last seconds.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("SELECT asked FROM clock").fetchone()  # opens the files while this process may
    except BaseException:
        connection.close()
        raise
    return connection


def create(path: str) -> bool:
    """Make an empty file at `path` an index; return False if it is a database, and no index of ours.

    Raise `sqlite3.Error` if it cannot be opened, is damaged, or is of another version.
    """
    with closing(sqlite3.connect(path, timeout=_WRITER_WAITS_S, isolation_level=None)) as connection:
        create_in(connection)
        if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
            return False
        _check_format(connection)
        # Heals a sum that a repair of the database or another program left wrong; writes nothing if it is right.
        connection.execute(
            "INSERT OR REPLACE INTO room (rowid, bytes) SELECT 1, coalesce(sum(size), 0) FROM segments"
            " EXCEPT SELECT rowid, bytes FROM room"
        )
        return True


def _check_format(connection: sqlite3.Connection) -> None:
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found != FORMAT:
        raise sqlite3.DatabaseError(f"another version of fastfuse made it, in format {found} and not {FORMAT}")


def create_in(connection: sqlite3.Connection) -> None:
    """Make an empty database an index."""
    with _transaction(connection):
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return
        for statement in _SCHEMA.split(";\n"):
            connection.execute(statement)
        # A number is never given again, also not by an index that takes this one's place.
        connection.execute("INSERT INTO sqlite_sequence VALUES ('segments', ?)", (time.time_ns() >> 10,))
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")


def is_full(error: sqlite3.Error) -> bool:
    """Return whether the index could not be changed because its disk is full."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        yield


class Index:
    """One connection to the index; one thread at a time uses it. Every method may raise `sqlite3.Error`."""

    def __init__(self, connection: sqlite3.Connection, *, waits: bool = False) -> None:
        """Use `connection`. With `waits` a transaction waits for those of others."""
        self._connection = connection
        connection.execute(f"PRAGMA busy_timeout = {int((_WRITER_WAITS_S if waits else _READER_WAITS_S) * 1000)}")

    def find(self, object_id: int, start: int, end: int) -> list[Extent]:
        """Return what is kept of ``[start, end)``, in order; extents may overlap, and reach beyond it.

        A row that damage has made none is left out. It is replaced as its range is fetched again.
        """
        rows = self._connection.execute(
            f"SELECT {_EXTENT} FROM extents"
            f" WHERE object = ? AND start > ? AND start < ? AND end > ? AND {_IS_SOUND} ORDER BY start",
            (object_id, start - MAX_EXTENT_BYTES, end, start),
        )
        return [Extent(*row) for row in rows]

    def objects(self) -> Iterator[int]:
        """Yield every object of which something is kept."""
        # A row that damage has made none is left out.
        rows = self._connection.execute("SELECT DISTINCT object FROM extents WHERE typeof(object) = 'integer'")
        return (row[0] for row in rows)

    def find_in(self, segment: int) -> list[tuple[int, Extent]]:
        """Return what is kept in a segment, with the object of each extent, in the order of their places."""
        rows = self._connection.execute(
            f"SELECT {_EXTENT}, object FROM extents WHERE segment = ? AND {_IS_SOUND} ORDER BY offset", (segment,)
        )
        return [(row[-1], Extent(*row[:-1])) for row in rows]

    def commit(
        self,
        extents: Iterable[tuple[int, Extent]],
        filled: Mapping[int, int],
        hits: Mapping[int, int],
        asked_bytes: int,
    ) -> int:
        """Make extents known, by object, whose bytes are in their segments; return the time, in bytes asked for.

        `filled` and `hits` are bytes by segment; `asked_bytes` is what this process asked for since its last commit.
        """
        run = self._connection.execute
        with _transaction(self._connection):
            run("UPDATE clock SET asked = asked + ?", (asked_bytes,))
            now = self.now_bytes()
            self._connection.executemany(
                f"INSERT OR REPLACE INTO extents (object, {_EXTENT}) VALUES (?,?,?,?,?,?,?)",
                # SQLite's integers are signed; digests take the 64 bits as they are.
                [(object_id, *extent[:-1], extent.seed - (extent.seed >> 63 << 64)) for object_id, extent in extents],
            )
            self._connection.executemany(
                "UPDATE segments SET filled = ? WHERE id = ?", [(size, segment) for segment, size in filled.items()]
            )
            self._connection.executemany(
                "UPDATE segments SET hit_at = ?, hits = hits + ? WHERE id = ?",
                [(now, size, segment) for segment, size in hits.items()],
            )
        return now

    def now_bytes(self) -> int:
        """Return the time, in bytes asked for."""
        return int(self._connection.execute("SELECT asked FROM clock").fetchone()[0])

    def drop(self, object_id: int, extent: Extent) -> None:
        """Forget an extent, unless another one has taken its place."""
        with _transaction(self._connection):
            self._connection.execute(
                "DELETE FROM extents WHERE object = ? AND start = ? AND segment = ? AND offset = ?",
                (object_id, extent.start, extent.segment, extent.offset),
            )

    def forget(self, object_id: int) -> None:
        """Forget everything that is kept of an object."""
        with _transaction(self._connection):
            self._connection.execute("DELETE FROM extents WHERE object = ?", (object_id,))

    def unfilled(self) -> list[Segment]:
        """Return the segments that have room, with the most of it first."""
        rows = self._connection.execute(
            "SELECT id, size, filled FROM segments WHERE filled < size AND NOT pinned ORDER BY size - filled DESC"
        )
        return [Segment(*row) for row in rows]

    def segment(self, number: int) -> Segment | None:
        """Return a segment, or None if there is none of this number any more."""
        row = self._connection.execute("SELECT id, size, filled FROM segments WHERE id = ?", (number,)).fetchone()
        return None if row is None else Segment(*row)

    def segments(self) -> dict[int, int]:
        """Return the bytes that are filled of each segment, by its number."""
        return dict(self._connection.execute("SELECT id, filled FROM segments"))

    def add(self, size_bytes: int, limit_bytes: int) -> Segment | None:
        """Add a segment if all of them then have no more than `limit_bytes`; else return None."""
        with _transaction(self._connection):
            if self.room_bytes() + size_bytes > limit_bytes:
                return None
            row = self._connection.execute(
                "INSERT INTO segments (size, born, hit_at) SELECT ?, asked, asked FROM clock", (size_bytes,)
            )
            assert row.lastrowid is not None
            return Segment(row.lastrowid, size_bytes, 0)

    def room_bytes(self) -> int:
        """Return the bytes of all segments."""
        return int(self._connection.execute("SELECT bytes FROM room").fetchone()[0])

    def victims(self, most: int, unasked_since: int = NEVER) -> list[tuple[int, int]]:
        """Return segments that may go, with the return that is expected of each: the longest first.

        Segments that were asked for since the time `unasked_since` are left out.
        """
        return self._connection.execute(
            f"SELECT id, {_RETURN} AS returns FROM segments, (SELECT asked AS now FROM clock) WHERE NOT pinned"
            " AND hit_at < ? ORDER BY returns DESC, id LIMIT ?",
            (unasked_since, most),
        ).fetchall()

    def return_bytes(self, number: int, unasked_since: int = NEVER) -> int:
        """Return the return that is expected of a segment now; -1 if it may not go, or is gone."""
        row = self._connection.execute(
            f"SELECT {_RETURN} FROM segments, (SELECT asked AS now FROM clock)"
            " WHERE id = ? AND NOT pinned AND hit_at < ?",
            (number, unasked_since),
        ).fetchone()
        return -1 if row is None else int(row[0])

    def evict(self, number: int, *, also_pinned: bool = True) -> int | None:
        """Forget a segment and what lies in it; return the bytes that were in it, or None if it is pinned and stays."""
        with _transaction(self._connection):
            segment = self.segment(number)
            if segment is not None and not also_pinned and self.return_bytes(number) < 0:
                return None
            self._connection.execute("DELETE FROM extents WHERE segment = ?", (number,))
            self._connection.execute("DELETE FROM segments WHERE id = ?", (number,))
        return 0 if segment is None else segment.filled_bytes

    def pin(self, numbers: Iterable[int], *, is_pinned: bool = True) -> None:
        """Keep segments from being evicted from now on, or let them be."""
        with _transaction(self._connection):
            self._connection.executemany(
                "UPDATE segments SET pinned = ? WHERE id = ?", [(int(is_pinned), number) for number in numbers]
            )

    def totals(self) -> dict[str, int]:
        """Count everything; takes a second for a million extents."""
        names = ("kept_bytes", "ranges", "objects", "room_bytes", "segments", "pinned_bytes", "hit_bytes")
        row = self._connection.execute(
            "SELECT * FROM (SELECT coalesce(sum(end - start), 0), count(*), count(DISTINCT object) FROM extents),"
            " (SELECT coalesce(sum(size), 0), count(*), coalesce(sum(size * pinned), 0), coalesce(sum(hits), 0)"
            " FROM segments)"
        ).fetchone()
        return dict(zip(names, row, strict=True))


class Victims:
    """The segments that may go. A list of them serves many evictions: it takes a look at every segment."""

    def __init__(self, index: Index, size_bytes: int) -> None:
        """List those of `index`, of a tier of `size_bytes`."""
        self._index = index
        self._holds_for_bytes = size_bytes >> _LISTED_FOR_SHIFT
        # The return of each, the longest last, as listed at this time.
        self._listed: list[tuple[int, int]] = []
        self._listed_bytes = 0

    def least(self, now_bytes: int, unasked_since: int) -> int | None:
        """Return the return of the segment that is worth least; None if none may go."""
        if now_bytes - self._listed_bytes > self._holds_for_bytes:
            self._listed.clear()
        while self._listed:
            number, listed_bytes = self._listed[-1]
            # It is shorter after a hit, and -1 of a segment that others have pinned or evicted.
            if self._index.return_bytes(number, unasked_since) >= listed_bytes:
                break
            self._listed.pop()
        else:
            self._listed = self._index.victims(_LISTED, unasked_since)[::-1]
            self._listed_bytes = now_bytes
        return self._listed[-1][1] if self._listed else None

    def take(self) -> int:
        """Return the segment that `least` told of."""
        return self._listed.pop()[0]
