"""The server on its sockets: faults, log, keep-alive, shutdown."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bench.s3server import FaultRule, LoopbackServer, MemoryObjects, ObjectSet, Pace, ServerConfig, SyntheticObjects
from bench.s3server.faults import Delay, Limit, Stall
from bench.s3server.pages import ListQuery, decode_token, render_page, select_page
from bench.s3server.synthetic import synthetic_bytes
from tests.bench.s3server.clients import http_get
from tests.descriptors import open_descriptors
from tests.servers import S3Server

_DATA = bytes(range(256)) * 400


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    """Bucket ``data`` with the object ``key``, and ``made`` with synthetic ones."""
    buckets: dict[str, ObjectSet] = {
        "data": MemoryObjects({"key": _DATA}),
        "made": SyntheticObjects(count=3000, size_bytes=50 << 30, layout="dirs", directories=3),
    }
    with LoopbackServer(buckets) as server:
        yield server


@pytest.fixture
def client(server: LoopbackServer) -> Any:  # noqa: ANN401
    return S3Server(server.endpoint_url).client


def test_a_request_is_in_the_log_when_its_reply_is_there(server: LoopbackServer) -> None:
    http_get(server.endpoint_url, "/data/key", {"Range": "bytes=10-19", "If-Match": "*"})
    http_get(server.endpoint_url, "/data?list-type=2&prefix=a%20b")
    first, second = server.requests
    assert (first.method, first.operation, first.bucket, first.key) == ("GET", "GetObject", "data", "key")
    assert (first.range, first.if_match) == ((10, 20), "*")
    assert (first.status, first.sent_bytes, first.connection) == (206, 10, 1)
    assert (second.operation, second.connection) == ("ListObjectsV2", 2)
    assert second.query == {"list-type": "2", "prefix": "a b"}
    assert server.statistics().requests == {"GetObject": 1, "ListObjectsV2": 1}
    server.clear_requests()
    assert server.requests == ()


def test_the_log_keeps_the_last_requests_and_counts_all() -> None:
    objects = MemoryObjects(dict.fromkeys("abc", b"0123456789"))
    with LoopbackServer({"data": objects}, ServerConfig(log_limit=2)) as server:
        for key in "abc":
            http_get(server.endpoint_url, f"/data/{key}")
        assert [record.key for record in server.requests] == ["b", "c"]
        found = server.wait_until(lambda now: now.in_flight == 0)
        assert (found.requests, found.sent_bytes) == ({"GetObject": 3}, 30)
        assert server.wait_until(lambda now: now.in_flight == 0, timeout_s=0) == server.statistics()
        with pytest.raises(TimeoutError, match="in_flight=0"):
            server.wait_until(lambda now: now.in_flight == 1, timeout_s=0)


def test_a_delay_and_a_rate_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits_s: list[float] = []
    config = ServerConfig(pace=Pace(first_byte_delay_s=0.25, list_delay_s=0.5, rate_bytes_per_s=0.0))
    with LoopbackServer({"data": MemoryObjects({"key": b"x" * 100})}, config) as server:

        def wait(for_s: float) -> None:
            waits_s.append(for_s)
            if len(waits_s) == 56:
                server.faults.clear()

        monkeypatch.setattr(server._closing, "wait", wait)
        http_get(server.endpoint_url, "/data/key")
        http_get(server.endpoint_url, "/data?list-type=2")
        assert waits_s == [0.25, 0.5]
        server.faults.add(FaultRule(action=Delay(1.0)))
        server.faults.add(FaultRule(action=Limit(100.0)))
        http_get(server.endpoint_url, "/data/key")
        assert waits_s[2] == 1.25
        assert len(waits_s) == 3 + 50
        assert 0.5 < waits_s[-1] <= 1.0
        http_get(server.endpoint_url, "/data/key")
        assert len(waits_s) == 56  # the limit was removed amid the body


def test_a_server_closed_amid_requests_leaves_no_thread_and_no_socket() -> None:
    synthetic_bytes("make the shared block first", 0, 1)
    threads, files = set(threading.enumerate()), open_descriptors()
    server = LoopbackServer({"made": SyntheticObjects(count=1, size_bytes=1 << 40)})
    with server:
        server.faults.add(FaultRule(action=Stall(0), times=1))
        clients = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(4)]
        # One stalled by a fault, one that does not read, one idle, one in mid-request.
        clients[0].sendall(b"GET /made/0000 HTTP/1.1\r\n\r\n")
        server.wait_until(lambda now: now.in_flight == 1)
        clients[1].sendall(b"GET /made/0000 HTTP/1.1\r\n\r\n")
        clients[3].sendall(b"GET /made/0000 HT")
        server.wait_until(lambda now: now.in_flight == 2 and now.open_connections == 4)
    assert set(threading.enumerate()) <= threads  # an idle one of trio may have ended
    assert server.statistics().open_connections == 0
    for client in clients:
        client.close()
    assert open_descriptors() == files
    server.close()


def test_no_two_pages_have_the_same_token() -> None:
    view, query, tokens = MemoryObjects({"a": b""}).view(), ListQuery(), set()
    for _ in range(3):
        body = render_page("data", view, query, select_page(view, query, 0))
        token = body.split(b"<NextContinuationToken>")[1].split(b"<")[0].decode()
        tokens.add(token)
        query = ListQuery(token=token)
    assert len(tokens) == 3


@pytest.mark.parametrize("token", ["nonsense", "", "AAAA", "é", "b3RoZXI6MTo=", "ZmFzdGZ1c2U6eDo="])
def test_a_token_of_another_server_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        decode_token(token)


def test_a_connection_is_closed_after_the_reply_where_the_client_asks(server: LoopbackServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"HEAD /data/key HTTP/1.1\r\nConnection: close\r\n\r\n")
        reply = b"".join(iter(lambda: client.recv(65536), b""))
    assert reply.endswith(b"Connection: close\r\n\r\n")


def test_a_client_that_leaves_early_is_recorded_with_what_it_took(server: LoopbackServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as leaving:
        leaving.sendall(b"GET /made/0000/0001 HTTP/1.1\r\n\r\n")
        leaving.recv(100)
    server.wait_until(lambda now: now.open_connections == 0)
    assert server.requests[0].sent_bytes < 50 << 30
    assert server.statistics().sent_bytes == server.requests[0].sent_bytes


def test_nonsense_closes_its_own_connection_only(server: LoopbackServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as nonsense:
        nonsense.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert nonsense.recv(1) == b""
    assert http_get(server.endpoint_url, "/data/key")[1] == _DATA
