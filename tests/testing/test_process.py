"""The server as a command of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastfuse.errors import FastfuseError
from fastfuse.testing import Pace, ServerProcess, create_certificate, synthetic_bytes
from tests.testing.clients import http_get


def test_workers_serve_a_directory_and_end_with_the_handle(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(b"0123456789")
    with ServerProcess(tmp_path, bucket="files", workers=3) as server, ThreadPoolExecutor(8) as pool:
        url = server.endpoint_url
        bodies = pool.map(lambda _: http_get(url, "/files/a%20b", {"Range": "bytes=2-3"})[1], range(40))
        assert set(bodies) == {b"23"}
    with pytest.raises(ConnectionRefusedError):
        http_get(url, "/files/a%20b")


def test_workers_serve_synthetic_objects_at_the_pace_they_are_given() -> None:
    pace = Pace(first_byte_delay_s=0.001, list_delay_s=0.001, rate_bytes_per_s=500e6)
    with ServerProcess("count=10,size=64KiB,suffix=.bin", workers=1, pace=pace) as server:
        assert server.bucket == "bench"
        assert http_get(server.endpoint_url, "/bench/0007.bin")[1] == synthetic_bytes("0007.bin", 0, 65536)


def test_a_server_with_a_certificate_is_found_by_https(tmp_path: Path) -> None:
    with ServerProcess("count=1,size=1", tls=create_certificate(tmp_path)) as server:
        assert server.endpoint_url.startswith("https://127.0.0.1:")


def test_a_server_that_does_not_start_says_where_to_look(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FastfuseError, match="status 2"), ServerProcess("count=none"):
        pass
    assert "count=none" in capfd.readouterr().err


def _start(*arguments: str) -> tuple["subprocess.Popen[bytes]", int]:
    command = [sys.executable, "-m", "fastfuse.testing", "--synthetic", "count=1,size=1", "--workers", "2", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert ready["bucket"] == "bench"
    return process, int(ready["endpoint_url"].rpartition(":")[2])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_with_its_workers(number: signal.Signals) -> None:
    process, port = _start()
    with process:
        process.send_signal(number)
        assert process.wait(60) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_workers_end_when_the_command_is_killed() -> None:
    process, port = _start()
    with process:
        process.kill()
        # The workers hold the other end of the command's output: it closes when the last of them is gone.
        assert process.stdout is not None
        assert process.stdout.read() == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_half_a_certificate_is_refused() -> None:
    command = [sys.executable, "-m", "fastfuse.testing", "--synthetic", "count=1,size=1", "--tls-cert", os.devnull]
    result = subprocess.run(command, capture_output=True, check=False)
    assert result.returncode == 2
    assert b"--tls-key" in result.stderr
