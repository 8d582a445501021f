"""Keeps the AWS credentials: resolved once, renewed ahead of their expiry, resolved anew when the service refuses them.

aiobotocore walks its whole chain (environment, shared files and profiles, SSO, assume-role, web identity, container,
process, IMDS). What it finds is kept here as one immutable value.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import inf

import trio
from aiobotocore.credentials import AioCredentials
from aiobotocore.session import AioSession
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import BotoCoreError, ClientError

from fastfuse.errors import AccessError, ConfigurationError, FastfuseError, ServiceError
from fastfuse.repeats import EVERY_S
from fastfuse.s3.failures import Failure, Kind, resolution_error, safe_cause
from fastfuse.s3.retries import RetryableError

logger = logging.getLogger(__name__)
# Their warnings of a failed refresh have a traceback, which may show the output of a credential process. This module
# logs those failures itself.
for _name in ("aiobotocore.credentials", "aiobotocore.tokens"):
    logging.getLogger(_name).setLevel(logging.ERROR)

# botocore refreshes only in the last 15 minutes (`_DEFAULT_ADVISORY_REFRESH_TIMEOUT`): asking earlier is useless.
# The 30 s keep us inside that window however the clocks round.
_RENEW_BEFORE_EXPIRY = timedelta(minutes=14, seconds=30)
# A renewal that failed is tried again after half of the time left, but not in a tight loop.
_LEAST_RENEWAL_PAUSE = timedelta(seconds=1)
# What botocore calls the services that give an instance (IMDS) and a container the credentials of their roles.
_MACHINES = {"iam-role": "instance", "container-role": "container"}
_MACHINE_HINT = "Look whether its service of credentials (169.254.169.254, say) answers, and whether it has its role."
# No header can carry these.
_UNSENDABLE = re.compile(r"[^\x20-\x7e]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The credentials that sign a request; `expires_at` is None if they do not expire. The repr shows no secret."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    expires_at: datetime | None = None
    # Where they were found, in botocore's words: "env", "shared-credentials-file", "iam-role" and the like.
    provider: str = field(default="", compare=False)


async def resolve_credentials(session: AioSession) -> Credentials:
    """Return the credentials that `session` has now, refreshed by botocore where they are about to expire.

    Raises `AccessError` where there are none or they cannot be had, `ConfigurationError` for a bad profile.
    """
    try:
        found = await session.get_credentials()
        if found is None:
            raise AccessError(
                "No AWS credentials were found.",
                hint="Configure them (environment, profile, role), name a --profile, "
                "or use --no-sign-request for a public bucket.",
            )
        frozen, expires_at = await _frozen(found)
        parts = (frozen.access_key, frozen.secret_key, frozen.token or "")
        is_unsendable = any(_UNSENDABLE.search(part) for part in parts)
    except (BotoCoreError, ClientError, OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        # OSError: no token file, or no credential program. ValueError: an unreadable expiry time. The last three: JSON
        # that is no object, lacks a field or has no text in it, or an expiry time without a zone.
        raise resolution_error(error) from safe_cause(error)
    if is_unsendable:
        raise AccessError(
            "The AWS credentials hold a character that no key has, such as a line break.",
            hint="Copy them again into the environment variable or file that they come from.",
        )
    return Credentials(
        access_key=frozen.access_key,
        secret_key=frozen.secret_key,
        token=frozen.token,
        expires_at=expires_at,
        provider=found.method or "",
    )


async def _frozen(found: AioCredentials) -> tuple[ReadOnlyCredentials, datetime | None]:
    """Return the credentials in `found`, refreshed by botocore where they are about to expire, and when they expire.

    This machine's clock may be wrong. So credentials that have just come, and have expired by it, are used as if they
    did not expire, until the service refuses them.
    """
    # botocore's credentials that can be refreshed have the expiry in this attribute only.
    try:
        frozen = await found.get_frozen_credentials()
    except RuntimeError:  # they are expired after a refresh
        logger.warning(
            "The AWS credentials that have just come expired at %s by this machine's clock, which may be wrong. They "
            "are used until the service refuses them.",
            getattr(found, "_expiry_time", None),
        )
        return found._frozen_credentials, None  # noqa: SLF001 - it gives them to nobody
    return frozen, getattr(found, "_expiry_time", None)


def retry_if_passing(error: FastfuseError) -> None:
    """Raise `RetryableError` of an `error` in resolving credentials that may pass by itself; return for any other."""
    failure = _passing_failure(error)
    if failure is not None:
        raise RetryableError(error, failure, is_read=True) from error


def _passing_failure(error: FastfuseError) -> Failure | None:
    """Return the failure of credentials that `error` keeps from being resolved; None if it does not pass by itself."""
    if isinstance(error, AccessError | ConfigurationError):
        return None
    return Failure(kind=Kind.UNREACHABLE, detail=str(error).rstrip("."))


def _is_recent(then_s: float) -> bool:
    """Return whether it is too early to look for credentials once more after `then_s` on trio's clock."""
    # Another loop's clock may be ahead of this one's: trio has each begin anywhere.
    return 0 <= trio.current_time() - then_s < _LEAST_RENEWAL_PAUSE.total_seconds()


class CredentialSource:
    """Keeps the current credentials, for trio tasks."""

    def __init__(
        self,
        resolve: Callable[[], Awaitable[Credentials]],
        *,
        start_over: Callable[[], None] = lambda: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`resolve` may answer from what it found before; after `start_over` it looks everywhere again."""
        self._resolve = resolve
        self._start_over = start_over
        self._now = now
        self._lock = trio.Lock()
        self._renew_at: datetime | None = None
        self._replaced_s = -inf
        # Why none were found the last time, and when that was on trio's clock.
        self._failure: FastfuseError | None = None
        self._failed_s = -inf
        # When a line of each level was logged.
        self._told_s: dict[int, float] = {}
        # What kept `replace` from looking for others the last time, if it may pass.
        self.trouble: Failure | None = None
        # True if the last renewal brought nothing.
        self._is_overdue = False
        # True while a renewal is under way beside readers.
        self._is_renewing = False
        self.latest: Credentials | None = None

    @property
    def is_current(self) -> bool:
        """True if there are `latest` credentials, and they need not be renewed yet."""
        return self.latest is not None and not self._is_due()

    def take(self, found: Credentials | None) -> None:
        """Begin with the credentials that another process found. Expired ones are renewed first."""
        if found is not None:
            self._keep(found)
            if self._has_expired(found):
                self._renew_at = found.expires_at

    async def current(self) -> Credentials:
        """Return credentials that are valid now, resolved on first use and renewed ahead of their expiry.

        A checkpoint only where there are no valid ones. A renewal delays nobody while the old credentials are still
        valid: it is a task of its own. If it fails it is logged and tried again later.

        Where there are no valid ones, all who wait share one search and its failure, which holds for a second.
        """
        if self.latest is not None and not self._is_due():
            return self.latest
        if self.latest is not None and not self._has_expired(self.latest):
            if not self._is_renewing:
                self._is_renewing = True
                trio.lowlevel.spawn_system_task(self._renew_beside)
            return self.latest
        async with self._lock:
            if not self.is_current and self._failure is not None and _is_recent(self._failed_s):
                raise self._failure.with_traceback(None)
            if self.latest is None:
                self._keep(await self._find())
            elif self._is_due():
                await self._renew(self.latest)
            assert self.latest is not None
            return self.latest

    async def _find(self) -> Credentials:
        """Resolve credentials. A machine that gave some may do so again, as botocore takes an outage for no role."""
        try:
            return await self._resolve()
        except FastfuseError as error:
            machine = self.latest and _MACHINES.get(self.latest.provider)
            self._failed_s, self._failure = trio.current_time(), error
            if not machine or not isinstance(error, AccessError):
                raise
            told = f"The {machine} gives no AWS credentials now: {error}"
            self._failure = ServiceError(told, hint=_MACHINE_HINT)
            raise self._failure from error

    async def replace(self, refused: Credentials) -> bool:
        """Resolve anew after the service refused `refused`, and return whether there are other credentials now.

        Files are read again and a `credential_process` is asked again, at most once a second. A failure is logged and
        leaves the old credentials.
        """
        async with self._lock:
            if self.latest is not refused:
                return True
            if _is_recent(self._replaced_s):
                return False
            self._start_over()
            self.trouble = None
            try:
                fresh = await self._find()
            except FastfuseError as error:
                line = f"The service refused the AWS credentials, and there are no others: {error}"
                self._tell(logging.WARNING, line)
                fresh = refused
                self.trouble = _passing_failure(error)
            self._replaced_s = trio.current_time()
            if replace(fresh, expires_at=None) == replace(refused, expires_at=None):
                return False
            self._tell(logging.INFO, "The service refused the AWS credentials; using those that were resolved anew.")
            self._keep(fresh)
            return True

    def _tell(self, level: int, line: str) -> None:
        """Log that credentials were refused, once in 30 s at each level: revoked ones are looked for every second."""
        now_s = trio.current_time()
        if not 0 <= now_s - self._told_s.get(level, -inf) < EVERY_S:
            self._told_s[level] = now_s
            logger.log(level, "%s", line)

    def _is_due(self) -> bool:
        return self._renew_at is not None and self._now() >= self._renew_at

    def _has_expired(self, credentials: Credentials) -> bool:
        return credentials.expires_at is not None and credentials.expires_at <= self._now()

    async def _renew_beside(self) -> None:
        """Renew the credentials that are due; raise nothing, as a task of trio's own must not."""
        try:
            async with self._lock:
                if self.latest is not None and self._is_due():
                    await self._renew(self.latest)
        except FastfuseError:
            pass  # they have expired meanwhile: who needs others looks for them, and is told why there are none
        except Exception:
            self._renew_at = self._now() + _LEAST_RENEWAL_PAUSE
            logger.exception("Renewing the AWS credentials failed for an unforeseen reason")
        finally:
            self._is_renewing = False

    async def _renew(self, old: Credentials) -> None:
        assert old.expires_at is not None
        try:
            fresh = await self._find()
        except FastfuseError as error:
            self._is_overdue = True
            left = old.expires_at - self._now()
            if left <= timedelta(0):
                raise
            self._renew_at = self._now() + max(left / 2, _LEAST_RENEWAL_PAUSE)
            logger.warning("Renewing the AWS credentials failed, %d s before they expire: %s", left.seconds, error)
            return
        if fresh == old:  # botocore returns the old ones after a failure, until ten minutes before the expiry
            logger.warning("The AWS credentials were not renewed yet; they expire at %s", old.expires_at)
            fresh = old  # clients take another object for other credentials
        else:
            until = f"; they expire at {fresh.expires_at}" if fresh.expires_at else ""
            logger.log(logging.INFO if self._is_overdue else logging.DEBUG, "The AWS credentials are renewed%s", until)
        self._is_overdue = fresh is old
        self._keep(fresh)

    def _keep(self, fresh: Credentials) -> None:
        self.latest = fresh
        if fresh.expires_at is None:
            self._renew_at = None
            return
        # Short-lived ones (credential_process may give a minute) are renewed half way instead.
        half_way = self._now() + max((fresh.expires_at - self._now()) / 2, _LEAST_RENEWAL_PAUSE)
        self._renew_at = max(fresh.expires_at - _RENEW_BEFORE_EXPIRY, half_way)
