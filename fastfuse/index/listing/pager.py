"""LIST pages of one bucket: requested, parsed and checked, with as many requests at once as the service accepts.

The number of requests in flight is halved when the service throttles. It grows by one for each round of pages that
arrived (additive increase, multiplicative decrease, as in TCP).
"""

from typing import Final

import trio

from fastfuse.errors import ServiceError, ThrottledError
from fastfuse.index.listing.page import Page, parse_page
from fastfuse.s3.base import PageSource
from fastfuse.s3.retries import UNTIL_DEADLINE, RetryableError, retrying

__all__ = ["MAX_IN_FLIGHT", "Pager"]

# S3 answers at least 5,500 requests a second and prefix; 64 pages of 100 ms are 640, or 640,000 objects a second.
MAX_IN_FLIGHT: Final = 64
# No listing waits longer for a page that the service throttles.
_DEADLINE_S: Final = 300.0


class Pager:
    """Requests the pages of one bucket from a `PageSource`, which stays the caller's."""

    def __init__(self, source: PageSource, bucket: str) -> None:
        self._source = source
        self._bucket = bucket
        self._limiter = trio.CapacityLimiter(MAX_IN_FLIGHT)
        self._came_since_growth = 0
        self._halved_at_s = -1.0
        self.request_count = 0
        self.throttled_count = 0

    @property
    def capacity(self) -> int:
        """The number of requests that may be in flight now."""
        return int(self._limiter.total_tokens)

    @property
    def in_flight(self) -> int:
        return self._limiter.borrowed_tokens

    async def page(
        self, prefix: str, *, start_after: str = "", continuation_token: str = "", delimiter: str = ""
    ) -> Page:
        """Return one page, whose keys all begin with `prefix`.

        Raises:
            ServiceError: the page holds a key outside `prefix`, or does not arrive within minutes; or as
                `PageSource.list`.
            AccessError, SourceError, ConfigurationError: as `PageSource.list`.
        """

        async def ask_once() -> bytes:
            async with self._limiter:
                begun_s = trio.current_time()
                self.request_count += 1
                try:
                    return await self._source.list(
                        self._bucket,
                        prefix=prefix,
                        start_after=start_after,
                        continuation_token=continuation_token,
                        delimiter=delimiter,
                    )
                except ThrottledError as error:
                    self._shrink(begun_s)
                    raise RetryableError(error, attempts=UNTIL_DEADLINE) from error.__cause__

        with trio.move_on_after(_DEADLINE_S):
            body = await retrying(ask_once)
            self._grow()
            return _checked(parse_page(body), prefix)
        raise ServiceError(f"no LIST page of {self._bucket!r} arrived within {_DEADLINE_S:.0f} s")

    def _grow(self) -> None:
        self._came_since_growth += 1
        if self._came_since_growth >= self.capacity < MAX_IN_FLIGHT:
            self._came_since_growth = 0
            self._limiter.total_tokens += 1

    def _shrink(self, begun_s: float) -> None:
        self.throttled_count += 1
        if begun_s > self._halved_at_s:  # requests sent before the last halving do not show its effect
            self._halved_at_s = trio.current_time()
            self._came_since_growth = 0
            self._limiter.total_tokens = max(self.capacity // 2, 1)


def _checked(page: Page, prefix: str) -> Page:
    start = prefix.encode()
    if not all(key.startswith(start) for key in page.keys):
        raise ServiceError(f"the LIST reply for {prefix!r} holds a key that does not begin with it")
    return page
