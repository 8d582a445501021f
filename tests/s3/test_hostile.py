"""What the S3 client makes of a hostile server: the table of `hostile_rows`, row by row and verb by verb.

A cell of the table is one request to a server that follows the row's script. Cells run side by side, those of floods
one after another, because each of these is also held to a bound of memory. After each cell the server is good again,
and the same client has to read from it what is right: nothing hostile may stay behind in it or in its connections.
"""

import errno
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
import trio

from fastfuse.errors import AccessError, ConfigurationError, FastfuseError, ReadError, ServiceError, SourceError
from fastfuse.index.listing import page as page_module
from fastfuse.index.listing.page import Pager, parse_page
from fastfuse.s3 import client as client_module
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.retries import Retries
from tests.mounting import ENVIRONMENT
from tests.s3.hostile import BUCKET, DATA, PAGE, REF, Certificates, Hostile, create_certificates, serving
from tests.s3.hostile_rows import LONG_S, ROWS, Ending, Row

# The first two are GETs over a new connection, "again" is one over a connection that has served before.
_SPANS = {"small": (1000, 5000), "large": (0, len(DATA) - 1), "again": (1000, 5000)}
_VERBS = (*_SPANS, "head", "list")
# As long as those that AWS issues, and of their alphabet.
_TOKEN = "FwoGZXIvYXdzEJr//////////wEaDHRva2VuLXRva2VuLXRva2VuLXRva2VuLXRva2VuLXRva2VuLXRva2Vu+/=="
# Several times the longest deadline that a request may run into. On an idle machine none takes half of it.
_LIMIT_S = 15.0
# How long a busy machine may take for a request to a good server, retries included.
_PATIENCE_S = 60.0
_SIDE_BY_SIDE = 24
_MOST_MEMORY_BYTES = 64 << 20
_RIGHT_PAGE = parse_page(PAGE)
_ERRNOS = {errno.EIO: Ending.EIO, errno.ESTALE: Ending.ESTALE, errno.EACCES: Ending.EACCES}
_COMMAND_ERRORS: Sequence[tuple[type[FastfuseError], Ending]] = (
    (ServiceError, Ending.EIO),
    (SourceError, Ending.ESTALE),
    (AccessError, Ending.EACCES),
    (ConfigurationError, Ending.WRONG_PLACE),
)


@dataclass(frozen=True)
class Cell:
    row: Row
    verb: str
    transport: str

    @property
    def deadline_s(self) -> float:
        return self.row.deadline_for(self.verb)

    @property
    def stall_s(self) -> float:
        return self.row.stall_s or self.deadline_s / 3


@dataclass
class Outcome:
    """How the request of a cell ended."""

    # None where it did not end in time, or ended with what no caller expects.
    ending: Ending | None = None
    # What the user or the log gets to see of it.
    shown: str = ""
    # The traceback of an exception that should not be.
    crash: str = ""
    # How the same request ended over the same client once the server was good.
    afterwards: str = "not asked"
    other_connections: int = 0
    other: str = ""
    memory_bytes: int = 0


def _cells() -> Iterator[Cell]:
    for transport in ("plain", "tls"):
        for row in ROWS:
            # What happens while a connection is opened happens to none that is open. TLS changes nothing in the rest.
            has_again = row.accept is None and transport == "plain"
            for verb in _VERBS:
                if transport in row.transports and row.promise(verb) and (verb != "again" or has_again):
                    yield Cell(row, verb, transport)


_CELLS = tuple(_cells())


def _client(hostile: Hostile, deadline_s: float) -> S3Client:
    certificates = hostile.certificates
    config = ConnectionConfig(
        endpoint_url=hostile.url,
        region="us-east-1",
        force_path_style=True,
        ca_bundle=None if certificates is None else str(certificates.authority),
        max_connections=4,
        deadline_s=deadline_s,
    )
    return S3Client(S3Session(config))


async def _ask(client: S3Client, verb: str) -> bool:
    if verb == "head":
        return (await client.head(BUCKET, REF.key)) == REF
    if verb == "list":
        return await Pager(client, BUCKET, Retries()).page("") == _RIGHT_PAGE
    start, end = _SPANS[verb]
    return await client.get(REF, start, end) == DATA[start:end]


def _ending_of(error: FastfuseError, verb: str) -> Ending | None:
    """Return the ending that `error` is; None for an error that is none of this verb's."""
    if verb in _SPANS:
        return _ERRNOS.get(error.errno) if isinstance(error, ReadError) else None
    return next((ending for kind, ending in _COMMAND_ERRORS if isinstance(error, kind)), None)


async def _request(client: S3Client, verb: str, outcome: Outcome) -> None:
    with trio.move_on_after(_LIMIT_S):
        try:
            outcome.ending = Ending.RIGHT if await _ask(client, verb) else None
            outcome.shown = "" if outcome.ending else "wrong bytes"
        except FastfuseError as error:
            outcome.ending = _ending_of(error, verb)
            outcome.shown = f"{type(error).__name__}: {error} {error.hint}"
        except Exception:  # noqa: BLE001 - the cell fails, and the others go on
            outcome.crash = traceback.format_exc()
        return
    outcome.shown = f"nothing within {_LIMIT_S:g} s"


async def _request_again(client: S3Client, verb: str, *, is_patient: bool) -> str:
    """Return how the same request ends now that the server is good: "right" if it does at all."""
    last = "nothing"
    with trio.move_on_after(_PATIENCE_S):
        while True:
            try:
                return "right" if await _ask(client, verb) else "wrong bytes"
            except FastfuseError as error:
                last = f"{type(error).__name__}: {error}"
            if not is_patient:
                break
    return last


async def _play(cell: Cell, hostile: Hostile, client: S3Client) -> Outcome:
    row, verb, outcome = cell.row, cell.verb, Outcome()
    hostile.hang_up()
    if verb == "again":
        assert await _request_again(client, verb, is_patient=True) == "right"
    hostile.misbehave(row.answer, accept=row.accept, context=row.context)
    _forget_peak()
    before_bytes = _memory_bytes("VmRSS")
    await _request(client, verb, outcome)
    outcome.memory_bytes = _memory_bytes("VmHWM") - before_bytes
    if row.when_idle is not None:
        for peer in tuple(hostile.peers):
            await peer.idle.wait()
            await row.when_idle(peer)
    hostile.is_hostile = False
    # A deadline that is short enough to be waited for may be too short for a busy machine, and a server that sends
    # what nobody asked for may send it just when it is asked.
    is_patient = cell.deadline_s < LONG_S or row.is_flood
    outcome.afterwards = await _request_again(client, verb, is_patient=is_patient)
    outcome.other_connections, hostile.other.connections = hostile.other.connections, 0
    outcome.other = repr(bytes(hostile.other.received))
    return outcome


async def _play_some(cells: Iterator[Cell], outcomes: dict[Cell, Outcome], certificates: Certificates | None) -> None:
    """Play those of `cells` that nobody else takes, with one server and with one client as far as possible."""
    async with serving(certificates) as hostile, AsyncExitStack() as exits:
        client = None
        for cell in cells:
            if client is None or cell.row.names_region:
                client = await exits.enter_async_context(aclosing(_client(hostile, cell.deadline_s)))
                if not cell.row.names_region:
                    # The client of every cell but the first one of a task has met S3 before.
                    assert await _request_again(client, "list", is_patient=True) == "right"
            outcomes[cell] = await _play(cell, hostile, client)
            if cell.row.names_region:
                client = None


def _forget_peak() -> None:
    """Let the kernel's mark of the most memory that this process ever held begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def _memory_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) << 10


async def _play_all(cells: Sequence[Cell], certificates: Certificates) -> dict[Cell, Outcome]:
    outcomes: dict[Cell, Outcome] = {}

    def kind(cell: Cell) -> tuple[bool, str, float, float]:
        return cell.row.is_flood, cell.transport, cell.deadline_s, cell.stall_s

    for (is_flood, transport, deadline_s, stall_s), group in groupby(sorted(cells, key=kind), kind):
        with pytest.MonkeyPatch.context() as patch:
            # No setting shortens these.
            patch.setattr(page_module, "LIST_DEADLINE_S", deadline_s)
            patch.setattr(client_module, "_LIST_STALL_S", stall_s)
            patch.setattr(client_module, "stall_timeout_s", lambda _, stall_s=stall_s: stall_s)
            waiting = iter(tuple(group))
            async with trio.open_nursery() as nursery:
                for _ in range(1 if is_flood else _SIDE_BY_SIDE):
                    nursery.start_soon(_play_some, waiting, outcomes, certificates if transport == "tls" else None)
    return outcomes


@pytest.fixture(scope="module")
def outcomes_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, bool], Mapping[Cell, Outcome]]:
    """Return what plays the cells of a transport, those of floods or the others, for the first test of one of them.

    Each test has a limit of time, which is too short for all cells on a busy machine.
    """
    selected = [
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is test_a_hostile_server_gets_nowhere
    ]
    certificates = create_certificates(tmp_path_factory.mktemp("certificates"))

    @cache
    def play(transport: str, is_flood: bool) -> Mapping[Cell, Outcome]:
        cells = [cell for cell in _CELLS if (cell.transport, cell.row.is_flood) == (transport, is_flood)]
        cells = [cell for cell in cells if {"transport": cell.transport, "row": cell.row} in selected]
        with pytest.MonkeyPatch.context() as patch:
            for name in os.environ:
                if name.startswith("AWS_") or name.lower().endswith("_proxy"):
                    patch.delenv(name)
            for name, value in ENVIRONMENT.items():
                if name.startswith("AWS_"):
                    patch.setenv(name, value)
            patch.setenv("AWS_SESSION_TOKEN", _TOKEN)
            return trio.run(_play_all, cells, certificates)

    return play


@pytest.mark.parametrize(
    ("transport", "row"),
    [pytest.param(transport, row, id=f"{transport}-{row.name}") for row in ROWS for transport in row.transports],
)
def test_a_hostile_server_gets_nowhere(
    transport: str, row: Row, outcomes_of: Callable[[str, bool], Mapping[Cell, Outcome]]
) -> None:
    outcomes = outcomes_of(transport, row.is_flood)
    cells = [cell for cell in _CELLS if cell.row is row and cell.transport == transport]
    broken = {cell.verb: promise for cell in cells if (promise := _broken_promise(cell, outcomes[cell]))}
    assert not broken


def _broken_promise(cell: Cell, outcome: Outcome) -> str:
    """Return what was promised and did not come; empty where all did."""
    row, promise = cell.row, cell.row.promise(cell.verb)
    secrets = (_TOKEN, ENVIRONMENT["AWS_SECRET_ACCESS_KEY"], "Signature=")
    if outcome.crash:
        return outcome.crash
    if outcome.ending not in promise:
        return f"{outcome.shown or 'the right bytes'}, in place of {' or '.join(ending.value for ending in promise)}"
    if outcome.afterwards != "right":
        return f"{outcome.afterwards}, of a server that is good again"
    if outcome.other_connections:
        return f"{outcome.other_connections} connections to another host, which received {outcome.other}"
    if any(secret in outcome.shown for secret in secrets) or not outcome.shown.isprintable():
        return f"an error that is not fit to be shown: {outcome.shown!r}"
    if row.names_other and "127.0.0.2" not in outcome.shown:
        return f"{outcome.shown}, without the redirect's target"
    if row.is_flood and outcome.memory_bytes > _MOST_MEMORY_BYTES:
        return f"{outcome.shown}, and {outcome.memory_bytes >> 20} MiB of memory"
    return ""


def test_no_two_rows_have_the_same_name() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
