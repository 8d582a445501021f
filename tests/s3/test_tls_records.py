"""Broken records: whatever a server or somebody between sends, only whole records of the server are received."""

import random
import select
import socket
import ssl
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastfuse.s3.tls import TlsConnection, TlsContext
from tests.s3.tls_peers import HOST, PATIENCE_S, Server, connected, is_error_queue_empty, server_context_of, sockets

RECORD_HEADER_BYTES = 5
RECORD_BYTES = 1 << 14


def records_of(data: bytes) -> list[bytes]:
    records = []
    while data:
        size_bytes = RECORD_HEADER_BYTES + int.from_bytes(data[3:5])
        records.append(data[:size_bytes])
        data = data[size_bytes:]
    return records


def damage(records: list[bytes], how: str, at: int, place: int, noise: bytes) -> list[bytes]:
    """Return `records`, of which one was changed, cut, lost, put off, sent twice, or has a forged one before it."""
    before, record, behind = records[:at], records[at], records[at + 1 :]
    flipped = bytearray(record)
    flipped[place % len(record)] ^= noise[0] or 1
    others = {
        "flip": [bytes(flipped)],
        "cut": [record[: place % len(record)]],
        "resize": [record[:3] + place.to_bytes(2) + record[5:]],
        "drop": [],
        "swap": [*behind[:1], record],
        "repeat": [record, record],
        "insert": [noise, record],
    }
    return [*before, *others[how], *(behind[1:] if how == "swap" else behind)]


# How records are damaged, which one, where in it, and with what.
Damage = tuple[str, int, int, bytes]
DAMAGES = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "resize", "drop", "swap", "repeat", "insert"]),
        st.integers(0, 20),
        st.integers(0, (1 << 16) - 1),
        st.binary(min_size=1, max_size=40),
    ),
    max_size=3,
)


def damaged(data: bytes, damages: list[Damage]) -> bytes:
    records = records_of(data)
    for how, at, place, noise in damages:
        records = [record for record in records if record]
        if records:
            records = damage(records, how, at % len(records), place, noise)
    return b"".join(records)


FUZZ = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(
    sizes=st.lists(st.sampled_from([1, 30, 1000, 20_000]), min_size=1, max_size=5),
    damages=DAMAGES,
    version=st.sampled_from([ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]),
    is_in_thread=st.booleans(),
)
def test_of_damaged_records_the_whole_ones_before_the_first_damage_are_received(
    context: TlsContext,
    server_file: Path,
    sizes: list[int],
    damages: list[Damage],
    version: ssl.TLSVersion,
    is_in_thread: bool,
) -> None:
    server_context = server_context_of(server_file)
    server_context.maximum_version = version
    with connected(context, server_context) as ends:
        pieces = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
        for piece in pieces:
            ends.server.tls.write(piece)
        sent, records = b"".join(pieces), ends.server.take()
        coming = damaged(records, damages)
        fragments = [
            piece[start : start + RECORD_BYTES] for piece in pieces for start in range(0, len(piece), RECORD_BYTES)
        ]
        whole_bytes, place = 0, 0
        for record, fragment in zip(records_of(records), fragments, strict=True):
            if not coming.startswith(record, place):
                break
            whole_bytes, place = whole_bytes + len(fragment), place + len(record)
        ends.server.sock.sendall(coming)
        ends.server.sock.shutdown(socket.SHUT_WR)
        data = bytearray(len(sent) + 100)
        received = b""
        with suppress(OSError):
            if is_in_thread:
                ends.sock.setblocking(True)
                received = bytes(data[: ends.connection.receive_all(memoryview(data))])
            else:
                while piece := ends.read(1):
                    received += piece
        assert sent.startswith(received)
        assert (data if is_in_thread else received).startswith(sent[:whole_bytes])
        assert is_error_queue_empty()


@FUZZ
@given(damages=DAMAGES, version=st.sampled_from([ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]))
def test_a_damaged_handshake_fails_or_ends(
    context: TlsContext, server_file: Path, damages: list[Damage], version: ssl.TLSVersion
) -> None:
    server_context = server_context_of(server_file)
    server_context.maximum_version = version
    with sockets() as (client, theirs):
        connection, server = TlsConnection(context, client.fileno(), HOST), Server(theirs, server_context)
        assert connection.handshake() == "read"
        server._coming.write(theirs.recv(1 << 16))
        with suppress(ssl.SSLWantReadError):
            server.tls.do_handshake()
        theirs.sendall(damaged(server.take(), damages))
        theirs.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            while connection.handshake() == "read":
                assert select.select([client], [], [], PATIENCE_S)[0]
            # All that was damaged came behind what the handshake takes.
            assert version != ssl.TLSVersion.TLSv1_2
            assert connection.recv(1) == b""
        assert is_error_queue_empty()
