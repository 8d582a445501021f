"""LIST pages of one bucket, as many at once as the service likes: asked for, parsed, checked, and asked for again.

The number of requests in flight is halved when the service throttles, and grows by one for each round of pages that
came (additive increase, multiplicative decrease, as TCP does it).
"""

import random
from typing import Final

import trio

from fastfuse.errors import ServiceError, ThrottledError
from fastfuse.index.listing.page import Page, parse_page
from fastfuse.s3.base import PageSource

__all__ = ["MAX_IN_FLIGHT", "Pager"]

# S3 answers at least 5,500 requests a second and prefix; 64 pages of 100 ms are 640, or 640,000 objects a second.
MAX_IN_FLIGHT: Final = 64
# A page that is throttled for so long has no service to wait for.
_DEADLINE_S: Final = 300.0
# "Full jitter", https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0


class Pager:
    """Asks a `PageSource`, which stays the caller's, for pages of one bucket."""

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
        """How many requests may be in flight now."""
        return int(self._limiter.total_tokens)

    @property
    def in_flight(self) -> int:
        return self._limiter.borrowed_tokens

    async def page(
        self, prefix: str, *, start_after: str = "", continuation_token: str = "", delimiter: str = ""
    ) -> Page:
        """One page, whose keys all begin with `prefix`.

        Raises:
            ServiceError: a page with a key that was not asked for, or one that is not to be had: throttled for minutes,
                or as `PageSource.list`.
            AccessError, SourceError, ConfigurationError: as `PageSource.list`.
        """
        deadline_s = trio.current_time() + _DEADLINE_S
        attempt = 0
        while True:
            try:
                async with self._limiter:
                    begun_s = trio.current_time()
                    self.request_count += 1
                    body = await self._source.list(
                        self._bucket,
                        prefix=prefix,
                        start_after=start_after,
                        continuation_token=continuation_token,
                        delimiter=delimiter,
                    )
                self._grow()
                return _checked(parse_page(body), prefix)
            except ThrottledError:
                self._shrink(begun_s)
                attempt += 1
                pause_s = random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt))
                if trio.current_time() + pause_s > deadline_s:
                    raise
            await trio.sleep(pause_s)

    def _grow(self) -> None:
        self._came_since_growth += 1
        if self._came_since_growth >= self.capacity < MAX_IN_FLIGHT:
            self._came_since_growth = 0
            self._limiter.total_tokens += 1

    def _shrink(self, begun_s: float) -> None:
        self.throttled_count += 1
        if begun_s > self._halved_at_s:  # requests sent before the last halving say nothing about its effect
            self._halved_at_s = trio.current_time()
            self._came_since_growth = 0
            self._limiter.total_tokens = max(self.capacity // 2, 1)


def _checked(page: Page, prefix: str) -> Page:
    start = prefix.encode()
    if not all(key.startswith(start) for key in page.keys):
        raise ServiceError(f"the LIST reply for {prefix!r} holds a key that does not begin with it")
    return page
