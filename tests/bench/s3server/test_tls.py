import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.s3server import DirectoryObjects, LoopbackServer, MemoryObjects, ObjectSet, ServerConfig, create_certificate
from bench.s3server.faults import FaultRule, Reset, Truncate
from bench.s3server.server_config import TlsFiles

_DATA = os.urandom(1_000_000)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return create_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server(certificate: TlsFiles, tmp_path: Path) -> Iterator[LoopbackServer]:
    (tmp_path / "file").write_bytes(_DATA)
    buckets: dict[str, ObjectSet] = {"memory": MemoryObjects({"file": _DATA}), "disk": DirectoryObjects(tmp_path)}
    with LoopbackServer(buckets, ServerConfig(tls=certificate)) as server:
        yield server


@pytest.mark.parametrize(("action", "is_reset"), [(Reset(0), True), (Truncate(0), False)])
def test_a_connection_ends_under_tls_as_the_fault_says(
    server: LoopbackServer, certificate: TlsFiles, action: Reset | Truncate, is_reset: bool
) -> None:
    server.faults.add(FaultRule(action=action))
    context = ssl.create_default_context(cafile=str(certificate.certificate))
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as plain,
        plain.dup() as below,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        secured.sendall(b"GET /disk/file HTTP/1.1\r\n\r\n")
        # Below TLS, because OpenSSL tells a reset and an end without a goodbye alike.
        assert _is_reset_at_the_end(below) == is_reset


def _is_reset_at_the_end(sock: socket.socket) -> bool:
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return False
