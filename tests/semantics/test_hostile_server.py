"""Clauses D1, D5 and D6 with a hostile server: the worst rows of its table behind one mount."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio

from tests.mounting import ENVIRONMENT, mounted
from tests.s3.hostile import BUCKET, DATA, Peer, Request, create_certificates, good, good_reply, page_of, serving
from tests.s3.hostile_rows import BY_NAME, ERRNOS
from tests.semantics.places import direct_read, errno_of

_WORST = (
    *("chunks: of one byte for ever", "chunks: size for ever", "dripping body", "a flood behind the body"),
    *("another reply behind the body", "another ETag", "error document: for ever", "headers for ever"),
    *("error document: quotes the credentials", "interim replies for ever", "redirect 307", "reset in the body"),
    *("silent in the body", "the settings of HTTP/2"),
)
_BAD = {f"bad-{at}": BY_NAME[name] for at, name in enumerate(_WORST)}
_PAGE = page_of(*((key, len(DATA)) for key in (*sorted(_BAD), "good")))
_PAGE_BYTES = 4096
_TOKEN = "FwoGZXIvYXdzEJr//////////wEaDHRva2VuLXRva2VuLXRva2Vu+/=="
# Most bad files end by it, side by side, and the good one has to be read within it on a busy machine, too.
_DEADLINE_S = "15"
# What `mounting.mount_command` sets, and what a client may take beside it.
_MOST_MEMORY_BYTES = (256 + 64) << 20


@pytest.mark.fuse
@pytest.mark.parametrize("transport", ["plain", "tls"])
async def test_a_mount_outlives_a_hostile_server(transport: str, tmp_path: Path) -> None:
    """D1 D5 D6"""
    certificates = create_certificates(tmp_path) if transport == "tls" else None
    more = {"AWS_SESSION_TOKEN": _TOKEN}
    if certificates is not None:
        more["AWS_CA_BUNDLE"] = str(certificates.authority)
    async with serving(certificates) as hostile:
        hostile.misbehave(_answer, accept=None, context="good")
        await trio.to_thread.run_sync(_read_everything, hostile.url, {**ENVIRONMENT, **more})
        assert hostile.other.connections == 0


async def _answer(peer: Peer, request: Request) -> None:
    if request.verb == "list":
        await peer.send(good_reply(request).with_body(_PAGE).encode())
    elif request.key in _BAD:
        await _BAD[request.key].answer(peer, request)
    else:
        await good(peer, request)


def _read_everything(endpoint_url: str, environment: dict[str, str]) -> None:
    """Read the bad files all at once, and the good one before, meanwhile and afterwards."""
    with (
        mounted(f"s3://{BUCKET}", endpoint_url, "--read-deadline-s", _DEADLINE_S, environment=environment) as mount,
        ThreadPoolExecutor(len(_BAD)) as readers,
    ):
        worker, good_path = mount.worker(), mount.path / "good"
        assert direct_read(good_path, _PAGE_BYTES) == DATA[:_PAGE_BYTES]
        pending = {key: readers.submit(errno_of, _read, mount.path / key) for key in _BAD}
        for offset in range(_PAGE_BYTES, 20 * _PAGE_BYTES, _PAGE_BYTES):
            assert direct_read(good_path, _PAGE_BYTES, offset) == DATA[offset : offset + _PAGE_BYTES]
        got = {_BAD[key].name: future.result() for key, future in pending.items()}
        promised = {row.name: {ERRNOS[ending] for ending in row.get} for row in _BAD.values()}
        assert {name: number for name, number in got.items() if number not in promised[name]} == {}
        assert good_path.read_bytes() == DATA
        assert mount.worker() == worker
        status = Path(f"/proc/{worker}/status").read_text()
        assert int(status.partition("VmHWM:")[2].split()[0]) << 10 <= _MOST_MEMORY_BYTES
        assert not [secret for secret in (ENVIRONMENT["AWS_SECRET_ACCESS_KEY"], _TOKEN) if secret in mount.log]


def _read(path: Path) -> None:
    assert path.read_bytes() == DATA
