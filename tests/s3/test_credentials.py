import errno
import json
import os
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import trio.testing
from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import EndpointConnectionError
from trio.testing import MockClock

from bench.s3server import EXPIRED_TOKEN, FaultRule, LoopbackServer, MemoryObjects, ServerConfig
from fastfuse.errors import (
    AccessError,
    ConfigurationError,
    DeadlineError,
    FastfuseError,
    ObjectDeniedError,
    ServiceError,
    UnavailableError,
)
from fastfuse.metrics import Counters
from fastfuse.objects import ObjectRef
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.credentials import Credentials, CredentialSource
from tests.s3.canned import canned_server
from tests.s3.places import IN_A_REGION, loopback_client
from tests.servers import SECRET_KEY, configure

START = datetime(2024, 1, 1, tzinfo=UTC)
REF = ObjectRef("bucket", "key", 4, "")
IN_PROFILE = replace(IN_A_REGION, profile="process")


def source_of(config: ConnectionConfig | None = None) -> CredentialSource:
    source = S3Session(config or ConnectionConfig()).credentials
    assert source is not None
    return source


@pytest.fixture
def no_environment_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")


def write_process_profile(config: Path, reply: Path, *, calls: Path) -> None:
    """A profile whose credentials are what `reply` holds at the time; each call adds a byte to `calls`."""
    program = config.parent / "process.py"
    program.write_text(
        f"import sys; open({str(calls)!r}, 'a').write('.'); sys.stdout.write(open({str(reply)!r}).read())"
    )
    config.write_text(f"[profile process]\ncredential_process = {sys.executable} {program}\n")


def process_reply(access_key: str, lifetime: timedelta) -> str:
    expiry = (datetime.now(UTC) + lifetime).isoformat()
    keys = {"AccessKeyId": access_key, "SecretAccessKey": SECRET_KEY, "SessionToken": "token", "Expiration": expiry}
    return json.dumps({"Version": 1} | keys)


async def test_a_named_profile_wins_over_the_environment(aws_environment: Path) -> None:
    configure(aws_environment, "[profile other]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = theirs\n")
    assert (await source_of(ConnectionConfig(profile="other")).current()).access_key == "AKIAOTHER"


async def test_half_of_a_pair_of_keys_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigurationError, match="missing: AWS_SECRET_ACCESS_KEY"):
        await source_of().current()


async def test_a_configuration_that_cannot_be_parsed_is_told(aws_environment: Path) -> None:
    configure(aws_environment, "[profile\n")
    with pytest.raises(ConfigurationError, match="Unable to parse"):
        await source_of().current()


@pytest.mark.parametrize(
    "sign_in", ["sso_session = company", "sso_region = us-east-1\nsso_start_url = https://sso.test"]
)
async def test_a_sign_in_that_is_over_is_told_in_one_sentence(
    aws_environment: Path, caplog: pytest.LogCaptureFixture, sign_in: str
) -> None:
    profile = f"[profile sso]\nsso_account_id = 123456789012\nsso_role_name = test\n{sign_in}\n"
    session = "[sso-session company]\nsso_region = us-east-1\nsso_start_url = https://sso.test\n"
    configure(aws_environment, profile + session)
    with pytest.raises(AccessError, match="sign-in has expired") as caught:
        await source_of(ConnectionConfig(profile="sso")).current()
    assert "aws sso login" in caught.value.hint
    assert not caplog.records


async def test_a_credential_process_that_fails_does_not_show_what_it_printed(aws_environment: Path) -> None:
    program = "import sys; sys.exit('leaked-secret')"
    configure(aws_environment, f'[profile process]\ncredential_process = {sys.executable} -c "{program}"\n')
    with pytest.raises(AccessError) as caught:
        await source_of(ConnectionConfig(profile="process")).current()
    assert "leaked-secret" not in str(caught.value) + caught.value.hint
    assert "leaked-secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "printed",
    [
        "keys",
        "[]",
        '{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "s", "Expiration": "2099-01-01T00:00:00"}',
        '{"Version": 1, "AccessKeyId": null, "SecretAccessKey": "s"}',
        '{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": 5}',
    ],
)
async def test_a_credential_process_that_prints_something_else_is_told(
    aws_environment: Path, tmp_path: Path, printed: str
) -> None:
    (tmp_path / "reply").write_text(printed)
    write_process_profile(aws_environment, tmp_path / "reply", calls=tmp_path / "calls")
    with pytest.raises(AccessError, match="cannot be had"):
        await source_of(ConnectionConfig(profile="process")).current()


@pytest.mark.usefixtures("no_environment_keys")
async def test_a_container_that_gives_no_keys_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with canned_server(lambda _: (200, {}, b"{}")) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/keys")
        with pytest.raises(AccessError, match="cannot be had"):
            await source_of().current()


@pytest.mark.usefixtures("no_environment_keys")
async def test_keys_are_issued_in_the_given_region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    async def send(_: object, request: AWSPreparedRequest) -> None:
        asked.append(request.url)
        raise EndpointConnectionError(endpoint_url=request.url)

    monkeypatch.setattr("fastfuse.s3.aws._HttpSession.send", send)
    (tmp_path / "token").write_text("web-identity-token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws-cn:iam::123456789012:role/test")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(ServiceError, match="issues the AWS credentials"):
        await source_of(ConnectionConfig(region="cn-north-1")).current()
    assert asked == ["https://sts.cn-north-1.amazonaws.com.cn/"]


@pytest.mark.usefixtures("no_environment_keys")
@pytest.mark.parametrize(
    ("region", "more", "error", "message", "hint"),
    [
        (None, "", ConfigurationError, "specify a region", "--region"),
        ("us-east-1", "mfa_serial = arn:aws:iam::123456789012:mfa/user", AccessError, "asks for an MFA code", ""),
    ],
)
async def test_a_role_that_lacks_something_asks_nobody(
    monkeypatch: pytest.MonkeyPatch, aws_environment: Path, region: str | None, more: str, error: type[FastfuseError],
    message: str, hint: str,
) -> None:  # fmt: skip
    role = f"role_arn = arn:aws:iam::123456789012:role/test\nsource_profile = base\n{more}\n"
    keys = "[profile base]\naws_access_key_id = a\naws_secret_access_key = b\n"
    configure(aws_environment, f"[profile role]\n{role}{keys}")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
    with pytest.raises(error, match=message) as caught:
        await source_of(ConnectionConfig(profile="role", region=region)).current()
    assert hint in caught.value.hint


@pytest.mark.usefixtures("no_environment_keys")
async def test_a_container_whose_service_cannot_be_reached_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/keys")
    with pytest.raises(ServiceError, match="issues the AWS credentials cannot be used: Connection refused"):
        await source_of().current()


def test_the_repr_shows_no_secret() -> None:
    shown = repr(Credentials(access_key="AKIA", secret_key="the-secret", token="the-token"))
    assert "the-secret" not in shown
    assert "the-token" not in shown


async def test_a_credential_program_that_breaks_leaves_valid_keys_in_use(
    aws_environment: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reply, program = tmp_path / "reply", tmp_path / "program"
    configure(reply, process_reply("AKIAFIRST", timedelta(seconds=60)))
    configure(program, f"#!/bin/sh\ncat {reply}\n")
    program.chmod(0o755)
    configure(aws_environment, f"[profile process]\ncredential_process = {program}\n")
    session = S3Session(ConnectionConfig(profile="process"))
    clock = Clock(datetime.now(UTC))
    assert session.credentials is not None
    source = CredentialSource(session.credentials._resolve, now=clock)
    first = await source.current()
    configure(program, "#!/bin/sh\necho leaked-secret >&2\nexit 1\n")
    clock.now += timedelta(seconds=31)
    assert await renewed(source) == first
    [record] = caplog.records  # one line, and no traceback of botocore's
    assert "Renewing the AWS credentials failed, " in record.getMessage()
    assert record.exc_info is None
    assert "leaked-secret" not in caplog.text

    configure(program, f"#!/bin/sh\ncat {reply}\n")
    configure(reply, process_reply("AKIASECOND", timedelta(hours=1)))
    assert await source.current() == first
    clock.now += timedelta(seconds=20)
    assert (await renewed(source)).access_key == "AKIASECOND"


async def test_keys_that_have_expired_by_a_clock_that_is_ahead_are_used_until_the_service_refuses_them(
    aws_environment: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reply, calls = tmp_path / "reply", tmp_path / "calls"
    write_process_profile(aws_environment, reply, calls=calls)
    reply.write_text(process_reply("AKIAFIRST", timedelta(hours=-1)))
    config = ServerConfig(clock_s=lambda: time.time() - 2 * 3600, most_skew_s=900)
    async with loopback_client({"key": b"data"}, config, IN_PROFILE) as (server, client):
        for _ in range(2):
            assert await client.get(REF, 0, 4) == b"data"
        assert "expired at 2" in caplog.messages[0]
        called = calls.read_text()
        reply.write_text(process_reply("AKIASECOND", timedelta(hours=-1)))
        server.faults.add(FaultRule(action=EXPIRED_TOKEN, times=1))
        assert await client.get(REF, 0, 4) == b"data"
        assert calls.read_text() > called
        assert client.session.credentials is not None
        assert client.session.credentials.latest is not None
        assert client.session.credentials.latest.access_key == "AKIASECOND"


@asynccontextmanager
async def passing(clock: trio.testing.MockClock, seconds: float, begin: Callable[[], bool]) -> AsyncIterator[None]:
    """Let so many seconds pass in the block, once they may `begin`, and no others: requests take none.

    The block fails if it waits for longer.
    """

    async def jump() -> None:
        while not begin():
            await trio.lowlevel.checkpoint()
        clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked(10.0)
        raise AssertionError(f"still waiting after {seconds} s")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(jump)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("size_bytes", [4, 1 << 20])
async def test_a_read_waits_for_other_credentials_until_its_deadline(
    size_bytes: int, mock_clock: trio.testing.MockClock
) -> None:
    data, ref = bytes(size_bytes), replace(REF, size_bytes=size_bytes)
    async with loopback_client({"key": data}) as (server, client):
        client.session.credentials, resolver, _ = source_with(None)
        assert await client.get(ref, 0, size_bytes) == data
        resolver.answers = trio.Event()
        server.faults.add(FaultRule(action=EXPIRED_TOKEN))
        told = r"'key' was refused \(400 ExpiredToken\), and other credentials did not come within 60 s"
        # Who waits for the read ends at 60 s, and could not tell why.
        async with passing(mock_clock, 59.5, lambda: resolver.calls > 1):
            with pytest.raises(DeadlineError, match=told):
                await client.get(ref, 0, size_bytes)


@pytest.mark.parametrize("character", ["\n", "\x7f", "é"])
@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
async def test_keys_unfit_for_a_header_are_refused(name: str, character: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, f"secret-part{character}")
    with pytest.raises(AccessError, match="a line break") as caught:
        await source_of().current()
    assert "secret-part" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize("size_bytes", [4, 1 << 20])
async def test_reads_are_signed_with_renewed_keys(aws_environment: Path, tmp_path: Path, size_bytes: int) -> None:
    reply, data, counters = tmp_path / "reply", bytes(size_bytes), Counters()
    write_process_profile(aws_environment, reply, calls=tmp_path / "calls")
    reply.write_text(process_reply("AKIAFIRST", timedelta(seconds=60)))
    with LoopbackServer({"bucket": MemoryObjects({"key": data})}, ServerConfig(access_key_id="AKIASECOND")) as server:
        session = S3Session(replace(IN_PROFILE, endpoint_url=server.endpoint_url))
        clock, ref = Clock(datetime.now(UTC)), replace(REF, size_bytes=size_bytes)
        assert session.credentials is not None
        session.credentials = CredentialSource(session.credentials._resolve, now=clock)
        async with aclosing(S3Client(session, counters=counters)) as client:
            with pytest.raises(ObjectDeniedError, match="InvalidAccessKeyId"):
                await client.get(ref, 0, size_bytes)
            reply.write_text(process_reply("AKIASECOND", timedelta(hours=1)))
            clock.now += timedelta(seconds=31)
            await renewed(session.credentials)
            assert await client.get(ref, 0, size_bytes) == data
            assert counters.get("fastfuse_credentials_renewed") == 1


# --- the source's own rules, with a resolver of the test's


class Clock:
    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


class Resolver:
    """Gives credentials that live for `lifetime` from the clock's now, or raises `error`."""

    def __init__(self, clock: Clock, lifetime: timedelta | None) -> None:
        self.clock = clock
        self.lifetime = lifetime
        self.error: Exception | None = None
        # None: at once.
        self.answers: trio.Event | None = None
        self.fixed: Credentials | None = None
        self.calls = 0

    async def __call__(self) -> Credentials:
        await trio.lowlevel.checkpoint()
        self.calls += 1
        if self.answers is not None:
            await self.answers.wait()
        if self.error is not None:
            raise self.error
        if self.fixed is not None:
            return self.fixed
        expires_at = None if self.lifetime is None else self.clock.now + self.lifetime
        return Credentials(access_key=f"key {self.calls}", secret_key="", expires_at=expires_at)


async def renewed(source: CredentialSource) -> Credentials:
    """Return the credentials once a renewal that is due has ended."""
    await source.current()
    while source._is_renewing:
        await trio.lowlevel.checkpoint()
    return await source.current()


def source_with(lifetime: timedelta | None) -> tuple[CredentialSource, Resolver, Clock]:
    clock = Clock()
    resolver = Resolver(clock, lifetime)
    return CredentialSource(resolver, now=clock), resolver, clock


async def source_after(minutes: int) -> tuple[CredentialSource, Resolver, Clock]:
    """Return a source that has had keys of an hour for so long."""
    source, resolver, clock = source_with(timedelta(hours=1))
    await source.current()
    clock.now += timedelta(minutes=minutes)
    return source, resolver, clock


async def test_an_hours_keys_are_renewed_a_quarter_of_an_hour_before_they_end() -> None:
    source, resolver, clock = await source_after(45)
    assert (await source.current()).access_key == "key 1"
    clock.now += timedelta(minutes=1)
    assert (await renewed(source)).access_key == "key 2"
    assert resolver.calls == 2


@pytest.mark.parametrize("minutes", [50, 70], ids=["due", "expired"])
async def test_many_readers_renew_once(minutes: int) -> None:
    source, resolver, _ = await source_after(minutes)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(renewed, source)
    assert resolver.calls == 2


async def test_a_renewal_that_hangs_delays_nobody_while_the_old_keys_are_valid() -> None:
    source, resolver, _ = await source_after(50)
    resolver.answers = trio.Event()
    for _ in range(3):
        with trio.testing.assert_no_checkpoints():
            assert (await source.current()).access_key == "key 1"
        await trio.testing.wait_all_tasks_blocked()
    resolver.answers.set()
    assert (await renewed(source)).access_key == "key 2"
    assert resolver.calls == 2


async def test_a_renewal_that_fails_unforeseen_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    source, resolver, _ = await source_after(50)
    resolver.error = ValueError("no JSON")
    assert (await renewed(source)).access_key == "key 1"
    assert "failed for an unforeseen reason" in caplog.text


async def test_keys_that_end_during_a_vain_renewal_are_told_to_those_who_need_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now, calls = START, 0

    async def resolve() -> Credentials:
        nonlocal now, calls
        calls += 1
        if calls == 1:
            return Credentials(access_key="a", secret_key="b", expires_at=START + timedelta(minutes=20))
        now += timedelta(minutes=15)
        await trio.lowlevel.checkpoint()
        raise AccessError("none")

    source = CredentialSource(resolve, now=lambda: now)
    await source.current()
    now += timedelta(minutes=10)
    assert (await source.current()).access_key == "a"
    await trio.testing.wait_all_tasks_blocked()
    assert calls == 2
    with pytest.raises(AccessError, match="none"):
        await source.current()
    assert not caplog.records


async def test_a_failed_renewal_keeps_valid_keys_and_is_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    source, resolver, clock = await source_after(50)
    resolver.error = ServiceError("no network")
    for _ in range(3):
        assert (await renewed(source)).access_key == "key 1"
    assert resolver.calls == 2
    assert "no network" in caplog.text
    resolver.error = None
    clock.now = START + timedelta(minutes=56)
    assert (await renewed(source)).access_key == "key 3"
    clock.now = START + timedelta(minutes=105)
    assert (await renewed(source)).access_key == "key 4"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "are renewed; they expire at 2" in caplog.text


async def test_a_renewal_that_brings_the_same_keys_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    source, resolver, clock = await source_after(46)
    first = source.latest
    assert first is not None
    resolver.fixed = replace(first)
    for _ in range(3):
        assert await renewed(source) is first
    assert resolver.calls == 2
    resolver.fixed = Credentials(access_key="kept", secret_key="")
    clock.now = START + timedelta(minutes=54)
    assert (await renewed(source)).access_key == "kept"
    assert ["not renewed yet" in line for line in caplog.messages] == [True, False]
    assert caplog.messages[1] == "The AWS credentials are renewed"


async def test_expired_keys_that_cannot_be_renewed_are_an_error(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level("INFO")
    source, resolver, _ = await source_after(120)
    resolver.error = ServiceError("no network")
    with pytest.raises(ServiceError, match="no network"):
        await source.current()
    resolver.error = None
    autojump_clock.jump(1.0)
    assert (await source.current()).access_key == "key 3"
    assert "are renewed" in caplog.text


@pytest.mark.parametrize("when", ["never had", "expired"])
async def test_all_waiters_share_one_search_and_its_failure(when: str, autojump_clock: MockClock) -> None:
    source, resolver, clock = source_with(timedelta(hours=1))
    if when == "expired":
        await source.current()
        clock.now += timedelta(hours=2)
    resolver.error, resolver.answers = AccessError("sign in again"), trio.Event()
    before = resolver.calls

    async def ask() -> None:
        with pytest.raises(AccessError, match="sign in again"):
            await source.current()

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        # Longer than a failure holds: they have waited for this one.
        autojump_clock.jump(60.0)
        resolver.answers.set()
    await ask()
    assert resolver.calls == before + 1
    autojump_clock.jump(1.0)
    await ask()
    assert resolver.calls == before + 2


# --- credentials that the service refuses


SECOND = Credentials(access_key="second", secret_key="")


async def test_old_keys_stay_and_nobody_looks_for_others_twice_a_second(autojump_clock: MockClock) -> None:
    source, resolver, _ = source_with(None)
    first = resolver.fixed = await source.current()
    for _ in range(10):
        assert not await source.replace(first)
    assert (resolver.calls, source.latest) == (2, first)
    await trio.sleep(1)
    resolver.fixed = SECOND
    assert await source.replace(first)


def test_a_later_loop_whose_clock_is_behind_looks_for_others_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    source, resolver, _ = source_with(None)

    async def replace(after_s: float) -> None:
        await trio.sleep(after_s)
        resolver.error = ServiceError("no network")
        source.latest = source.latest or SECOND
        assert not await source.replace(source.latest)

    for after_s in (1000, 1):
        trio.run(replace, after_s, clock=MockClock(autojump_threshold=0))
    assert resolver.calls == 2
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(("error", "words"), [(ServiceError("no network"), ": no network"), (None, "resolved anew.")])
async def test_a_search_that_fails_or_finds_only_what_is_refused_again_does_not_fill_the_log(
    error: Exception | None, words: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    source, resolver, _ = source_with(None)
    first = await source.current()
    resolver.error = error
    for _ in range(40):
        assert await source.replace(await source.current()) == (error is None)
        await trio.sleep(1)
    assert (await source.current() == first) == (error is not None)
    # One line in 30 s.
    assert [message.endswith(words) for message in caplog.messages] == [True, True]
    assert resolver.calls == 41


# --- credentials that cannot be had for a while


# As the process that finds keys sends it: no process can be started.
NO_ROOM = FastfuseError("no process can be started: Resource temporarily unavailable")
PASSING = [NO_ROOM, ServiceError("The service that issues the AWS credentials cannot be used: no route.")]


class Failing:
    """Fails as often as a test says, and then gives the keys that the service accepts."""

    def __init__(self, error: FastfuseError, times: int) -> None:
        self.error = error
        self.left = times

    async def __call__(self) -> Credentials:
        await trio.lowlevel.checkpoint()
        if self.left:
            self.left -= 1
            raise self.error
        return Credentials(access_key="AKIASECOND", secret_key=SECRET_KEY)


@asynccontextmanager
async def client_with(resolver: Failing, *, has_refused: bool) -> AsyncIterator[S3Client]:
    """Open a client that has no keys, or only such that the service refuses."""
    async with loopback_client({"key": b"data"}, ServerConfig(access_key_id="AKIASECOND")) as (_, client):
        client.session.credentials = CredentialSource(resolver)
        if has_refused:
            client.session.credentials.take(Credentials(access_key="AKIAFIRST", secret_key=SECRET_KEY))
        yield client


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try requests again at once, and look for keys with each."""
    monkeypatch.setattr("random.random", lambda: 0.0)
    monkeypatch.setattr("fastfuse.s3.credentials._LEAST_RENEWAL_PAUSE", timedelta(0))


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("error", PASSING)
@pytest.mark.parametrize("has_refused", [False, True], ids=["none", "refused"])
async def test_a_read_outlives_a_while_without_credentials_and_a_command_does_not(
    error: FastfuseError, has_refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    resolver = Failing(error, 6)  # a command has 4 attempts
    async with client_with(resolver, has_refused=has_refused) as client:
        with pytest.raises(AccessError if has_refused else type(error)):
            await client.head("bucket", "key")
        assert resolver.left == 5
        caplog.clear()
        assert await client.get(REF, 0, 4) == b"data"
    (line,) = (line for line in caplog.messages if "trying again" in line)
    assert f": {str(error).rstrip('.')}; trying again (attempt 1 failed" in line


async def test_who_comes_within_a_second_of_a_vain_search_for_others_tries_again_too() -> None:
    async with client_with(Failing(NO_ROOM, 1), has_refused=True) as client, trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(client.get, REF, 0, 4)


@pytest.mark.parametrize("error", PASSING)
@pytest.mark.parametrize("has_refused", [False, True], ids=["none", "refused"])
async def test_a_read_without_credentials_fails_by_its_deadline(
    error: FastfuseError, has_refused: bool, mock_clock: trio.testing.MockClock
) -> None:
    resolver = Failing(error, 1000)
    async with client_with(resolver, has_refused=has_refused) as client:
        # The last attempt is made a second before the end.
        async with passing(mock_clock, 59.0, lambda: resolver.left < 1000):
            with pytest.raises(UnavailableError, match=str(error).rstrip(".")) as caught:
                await client.get(REF, 0, 4)
        assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("when", ["expired", "refused", "taken expired"])
@pytest.mark.parametrize(
    ("provider", "kind"), [("iam-role", ServiceError), ("container-role", ServiceError), ("env", AccessError)]
)
async def test_a_machine_that_gave_keys_and_gives_none_may_give_some_again(
    provider: str, kind: type[FastfuseError], when: str, autojump_clock: MockClock
) -> None:
    source, resolver, clock = source_with(timedelta(hours=1))
    resolver.fixed = Credentials(
        access_key="first", secret_key="", expires_at=START + timedelta(hours=1), provider=provider
    )
    first = await source.current()
    resolver.error = AccessError("No AWS credentials were found.")
    if when == "refused":
        assert not await source.replace(first)
        assert (source.trouble is not None) == (kind is ServiceError)
        return
    clock.now += timedelta(hours=2)
    if when == "taken expired":  # by a worker that takes over from a dead one
        source = CredentialSource(resolver, now=clock)
        source.take(first)
    assert not source.is_current
    with pytest.raises(kind, match="No AWS credentials were found"):
        await source.current()
    autojump_clock.jump(1.0)
    resolver.error, resolver.fixed = None, replace(first, expires_at=clock.now + timedelta(hours=1))
    assert await source.current() == resolver.fixed


async def test_no_room_for_a_key_program_may_pass(aws_environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    write_process_profile(aws_environment, aws_environment, calls=aws_environment)
    monkeypatch.setattr("subprocess.Popen", no_room)
    with pytest.raises(ServiceError, match="cannot be had now: Resource temporarily unavailable"):
        await source_of(ConnectionConfig(profile="process")).current()
