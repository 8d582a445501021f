"""The probe: what it measures on a virtual clock, what it asks for at most, and what it says of failures."""

import pytest
import trio

from fastfuse.advise.model import PART_BYTES, Network
from fastfuse.advise.probe import MOST_BYTES, Probe, measure_network
from fastfuse.errors import ObjectChangedError, ObjectDeniedError, UnavailableError
from fastfuse.objects import Buffer, ObjectRef

LATENCY_S, RATE, TOTAL = 0.025, 50e6, 400e6


class Objects:
    """Every GET takes the latency and its bytes; all together no more than the total rate."""

    def __init__(self, error: Exception | None = None, rate: float = RATE, only: str = "") -> None:
        """Fail with `error`, if given, and if `only` is given, for the object with this key."""
        self.bytes = 0
        self._only = only
        self._error = error
        self._rate = rate
        self._line_is_free_s = 0.0

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        assert 0 <= start < end <= ref.size_bytes
        self.bytes += end - start
        await trio.sleep(LATENCY_S)
        if self._error is not None and self._only in {"", ref.key}:
            raise self._error
        now_s = trio.current_time()
        self._line_is_free_s = max(self._line_is_free_s, now_s) + (end - start) / TOTAL
        await trio.sleep_until(max(now_s + (end - start) / self._rate, self._line_is_free_s))
        return b""

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def refs(*sizes: int) -> list[ObjectRef]:
    return [ObjectRef("bucket", str(at), size, "") for at, size in enumerate(sizes)]


async def probed(objects: Objects, *sizes: int) -> Probe:
    largest = sorted(refs(*sizes), key=lambda ref: -ref.size_bytes)
    return await measure_network(objects, largest, refs(*sizes))


async def test_latency_and_both_rates_are_measured(autojump_clock: trio.testing.MockClock) -> None:
    objects = Objects()
    found = await probed(objects, *[1 << 30] * 3)
    assert not found.note
    assert found.network.latency_s == pytest.approx(LATENCY_S, rel=0.01)
    assert found.network.connection_bytes_per_s == pytest.approx(RATE, rel=0.01)
    assert 0.8 * TOTAL < found.network.total_bytes_per_s <= TOTAL
    assert found.network.requests_per_s == pytest.approx(64 / LATENCY_S, rel=0.2)
    assert objects.bytes <= MOST_BYTES


async def test_small_objects_tell_no_rate_of_bytes(autojump_clock: trio.testing.MockClock) -> None:
    found = await probed(Objects(), *[39_000] * 100)
    assert "all objects are small" in found.note
    assert found.network.latency_s == pytest.approx(LATENCY_S, rel=0.01)
    assert found.network.total_bytes_per_s == Network().total_bytes_per_s


async def test_one_object_of_one_part_is_enough(autojump_clock: trio.testing.MockClock) -> None:
    found = await probed(Objects(), PART_BYTES)
    assert not found.note
    assert found.network.total_bytes_per_s == pytest.approx(RATE, rel=0.2)


async def test_a_slow_network_is_measured_in_part(autojump_clock: trio.testing.MockClock) -> None:
    objects = Objects(rate=100_000)
    found = await probed(objects, 1 << 30)
    assert trio.current_time() == pytest.approx(5, abs=0.1)
    assert "in part only" in found.note


@pytest.mark.parametrize("error", [ObjectDeniedError("'a' may not be read"), UnavailableError("'a' is not there")])
async def test_a_failure_is_told_and_defaults_stand_in(
    autojump_clock: trio.testing.MockClock, error: Exception
) -> None:
    assert await probed(Objects(error), 1 << 30) == Probe(Network(), f"the network is not measured: {error}")


@pytest.mark.parametrize("only", ["0", "1", "2"])
@pytest.mark.parametrize("kind", [ObjectChangedError, ObjectDeniedError])
async def test_an_object_that_cannot_be_read_is_left_out(
    autojump_clock: trio.testing.MockClock, kind: type[Exception], only: str
) -> None:
    objects = Objects(kind("no"), only=only)
    found = await probed(objects, 2 << 30, 3 << 30, 1 << 30)
    assert not found.note
    assert objects.bytes <= MOST_BYTES
    assert found.network.connection_bytes_per_s == pytest.approx(RATE, rel=0.01)
