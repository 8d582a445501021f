import trio

from fastfuse.readahead.fetches import Fetches
from fastfuse.readahead.parts import FileParts, Part
from tests.readahead.readers import listed

FILE = FileParts(1, listed("a", 10))
RUNS = 20


async def begun_by(parts: list[Part]) -> list[Part]:
    begun: list[Part] = []

    async def fetch(part: Part) -> None:
        begun.append(part)
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        fetches = Fetches(nursery)
        for part in parts:
            fetches.start(fetch, part)
    return begun


async def test_fetches_begin_in_the_order_in_which_they_are_started() -> None:
    # trio turns every second batch round, by chance.
    for _ in range(RUNS):
        parts = [Part(FILE, start, start + 1) for start in range(10)]
        assert await begun_by(parts) == parts
