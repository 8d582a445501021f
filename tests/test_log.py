"""What log lines look like and where they go."""

import fcntl
import json
import logging
import os
import pty
import re
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastfuse import log_output
from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.processes.children import fork_child, wait_child
from fastfuse.filesystem.processes.privileges import become_nobody
from fastfuse.log import HumanFormatter, JsonFormatter, LogConfig, UnblockedStderr, command_text, configure, formatter

SECRETS = [
    "GET https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIDSECRET%2F2026&X-Amz-Signature=5ec7e7",
    "{'Authorization': 'AWS4-HMAC-SHA256 Credential=AKIDSECRET/x, Signature=5ec7e7'}",
    "headers: authorization: AWS4-HMAC-SHA256 Credential=AKIDSECRET, Signature=5ec7e7",
    "{'X-Amz-Security-Token': b'AKIDSECRET5ec7e7'}",
    "{'x-amz-server-side-encryption-customer-key': 'AKIDSECRET5ec7e7='}",
    "aws_secret_access_key = AKIDSECRET5ec7e7",
    '{"SecretAccessKey": "AKIDSECRET5ec7e7"}',
    "connecting to https://user:AKIDSECRET5ec7e7@example.com/",
]


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("fastfuse")
    before = root.handlers[:], root.level, own.level, sys.excepthook
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers, level, own_level, sys.excepthook = before[0], before[1], before[2], before[3]
    root.setLevel(level)
    own.setLevel(own_level)


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "fastfuse.x", "levelno": logging.INFO, "levelname": "INFO", "msg": message})
    made.created, made.msecs, made.process = 1_700_000_000.25, 250.0, 42
    vars(made).update(extra)
    return made


def test_a_human_line_has_time_level_logger_message_and_extra_fields() -> None:
    line = HumanFormatter().format(record("mounted", objects=3))
    assert line == "2023-11-14T22:13:20.250Z INFO fastfuse.x: mounted objects=3"


def test_a_json_line_has_time_level_logger_message_pid_and_extra_fields() -> None:
    fields = json.loads(JsonFormatter().format(record("mounted", objects=3, place=Path("/mnt"), empty=None)))
    assert fields == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "info",
        "logger": "fastfuse.x",
        "message": "mounted",
        "pid": 42,
        "objects": 3,
        "place": "/mnt",
        "empty": None,
    }


def test_an_extra_field_cannot_pass_for_the_level() -> None:
    assert json.loads(JsonFormatter().format(record("x", level="critical")))["level"] == "info"


@pytest.mark.parametrize("json_lines", [False, True])
@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_in_a_message_a_field_or_an_exception_is_not_written(secret: str, json_lines: bool) -> None:
    try:
        raise ValueError(secret)
    except ValueError:
        failed = sys.exc_info()
    line = formatter(LogConfig(json=json_lines)).format(record(f"odd: {secret}", request=secret, exc_info=failed))
    assert "AKIDSECRET" not in line
    assert "5ec7e7" not in line
    assert line.count("[redacted]") >= 2


@pytest.mark.parametrize("hostile", ["a\nb", "a\r\x1b[2Jb", "a\u2028b", "a\x85b", "a\x00b"])
def test_a_control_character_in_a_key_neither_starts_a_line_nor_reaches_the_terminal(hostile: str) -> None:
    try:
        raise ValueError(hostile)
    except ValueError:
        failed = sys.exc_info()
    lines = HumanFormatter().format(record(hostile, key=hostile, exc_info=failed)).splitlines()
    assert all(line.startswith("  ") for line in lines[1:])
    assert all(character.isprintable() for line in lines for character in line)


def test_only_our_own_loggers_become_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig(verbose=True))
    logging.getLogger("fastfuse.x").debug("ours")
    logging.getLogger("botocore.auth").debug("theirs")
    logging.getLogger("httpx").info("theirs")
    logging.getLogger("botocore.auth").warning("worth knowing")
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()] == [
        "DEBUG fastfuse.x: ours",
        "WARNING botocore.auth: worth knowing",
    ]


def test_without_verbose_there_are_no_details(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # each line is written once all the same
        configure(LogConfig())
    logging.getLogger("fastfuse.x").debug("detail")
    logging.getLogger("fastfuse.x").info("event")
    line, end, rest = capsys.readouterr().err.partition("\n")
    assert line.endswith(" INFO fastfuse.x: event")
    assert (end, rest) == ("\n", "")


@pytest.mark.parametrize("syslog", [None, Path("/absent")])
def test_a_log_file_is_appended_to_and_followed_when_it_is_rotated(tmp_path: Path, syslog: Path | None) -> None:
    file = tmp_path / "log"
    file.write_text("old\n")
    assert configure(LogConfig(file=file), syslog=syslog)
    logging.getLogger("fastfuse").info("first \udcff")
    file.rename(tmp_path / "log.1")
    logging.getLogger("fastfuse").info("second")
    assert (tmp_path / "log.1").read_text().startswith("old\n")
    assert (tmp_path / "log.1").read_text().endswith("first \\udcff\n")
    assert file.read_text().endswith("second\n")


def test_a_log_file_that_cannot_be_opened_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written: No such file or directory"):
        configure(LogConfig(file=tmp_path / "absent" / "log"))


def test_a_pipe_is_a_log_file_for_as_long_as_somebody_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ConfigurationError, match="cannot be written: it is a pipe that nobody reads"):
        configure(LogConfig(file=path))
    reading_fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        configure(LogConfig(file=path))
        logging.getLogger("fastfuse").info("mounted")
        assert os.read(reading_fd, 1024).endswith(b"mounted\n")
    finally:
        os.close(reading_fd)


def test_a_daemon_without_a_file_logs_to_syslog_as_fastfuse_and_leaves_the_time_to_it(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog:
        syslog.bind(str(tmp_path / "log"))
        syslog.setblocking(False)
        assert configure(LogConfig(), syslog=tmp_path / "log")
        logging.getLogger("fastfuse.x").info("mounted %s", os.fsdecode(b"/mnt/\xff"))
        assert syslog.recv(1024).rstrip(b"\0") == b"<30>fastfuse: INFO fastfuse.x: mounted /mnt/\\udcff"


def test_lines_that_nobody_reads_are_lost_and_counted(tmp_path: Path) -> None:
    reading_fd, writing_fd = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog, open(reading_fd, "rb"), open(writing_fd, "wb"):
        syslog.bind(str(tmp_path / "log"))
        pipe = LogConfig(file=Path(f"/proc/self/fd/{writing_fd}"))  # /dev/stderr is a link to such a path
        for config, place, fd in ((pipe, None, reading_fd), (LogConfig(), tmp_path / "log", syslog.fileno())):
            configure(config, syslog=place)
            for number in range(1_000):
                logging.getLogger("fastfuse").info("line %d %s", number, "x" * 200)  # more than either holds
            assert b"lost" not in heard_from(fd)
            logging.getLogger("fastfuse").info("heard again")
            loss, again = heard_from(fd).splitlines()
            lost = re.search(rb"log lines were lost, as nobody read them in time: (\d+)$", loss)
            assert lost is not None
            assert 0 < int(lost[1]) < 1_000
            assert again.endswith(b"heard again")


def socket_ends() -> tuple[int, int]:
    """Return what reads and what writes of a pair of sockets."""
    reading, writing = socket.socketpair()
    return reading.detach(), writing.detach()


# What may stand behind standard error: makes an end that reads and one that writes.
ENDS: dict[str, Callable[[], tuple[int, int]]] = {"terminal": pty.openpty, "pipe": os.pipe, "socket": socket_ends}


@pytest.fixture
def _ends_when_stuck() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("a write or a read waits"))
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_ends_when_stuck")
@pytest.mark.parametrize("line_bytes", [50, 5_000, 300_000])
@pytest.mark.parametrize("kind", [*ENDS, "log file"])
def test_no_line_waits_for_a_reader_whatever_its_length_and_a_torn_one_is_ended(
    monkeypatch: pytest.MonkeyPatch, kind: str, line_bytes: int
) -> None:
    reading_fd, writing_fd = ENDS.get(kind, os.pipe)()
    with open(reading_fd, "rb", buffering=0), open(writing_fd, "w", buffering=1) as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        configure(LogConfig(file=Path(f"/proc/self/fd/{writing_fd}") if kind == "log file" else None))
        text = UnblockedStderr()
        for _ in range(2_000_000 // line_bytes):  # more than any holds
            logging.getLogger("fastfuse").info("x" * line_bytes)
            if kind != "log file":
                text.write("x" * line_bytes)
        heard_from(reading_fd)
        logging.getLogger("fastfuse").info("heard again")
        lines = heard_from(reading_fd).replace(b"\r", b"").splitlines()
        assert re.search(rb"log lines were lost, as nobody read them in time: \d+$", lines[-2])
        assert lines[-1].endswith(b" heard again")
        assert lines[:-2] in ([], [b""])  # the end of the line that was torn
        assert os.get_blocking(writing_fd)  # it is others', too
        monkeypatch.undo()
        logging.getLogger().handlers.pop().close()


@pytest.mark.usefixtures("_ends_when_stuck")
def test_a_long_line_is_whole_for_a_reader_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    reading_fd, writing_fd = os.pipe()
    with open(reading_fd, "rb", buffering=0), open(writing_fd, "w", buffering=1) as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setattr(log_output, "READER_TIMEOUT_S", 60.0)
        text, whole = "x" * 1_000_000, b"x" * 1_000_000 + b"\n"
        reader = fork_child(lambda: read_all_of(reading_fd, whole))
        UnblockedStderr().write(text)
        assert wait_child(reader) == 0
        monkeypatch.undo()


def test_a_pipe_without_room_for_a_traceback_gets_whole_lines_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes write to the same pipe."""
    reading_fd, writing_fd = os.pipe()
    with open(reading_fd, "rb", buffering=0) as reading, open(writing_fd, "w", buffering=1) as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        os.write(writing_fd, bytes(fcntl.fcntl(writing_fd, fcntl.F_GETPIPE_SZ) - select.PIPE_BUF))
        text = UnblockedStderr()
        text.write("\n".join(["x" * 999] * 10))
        assert reading.read(1 << 20).lstrip(b"\0") == (b"x" * 999 + b"\n") * 4
        text.write("heard again")
        loss, again = reading.read(1 << 20).splitlines()
        assert loss.endswith(b"log lines were lost, as nobody read them in time: 1")
        assert again == b"heard again"
        monkeypatch.undo()


def read_all_of(fd: int, whole: bytes) -> None:
    heard = b""
    while len(heard) < len(whole):
        heard += os.read(fd, 1 << 12)
    assert heard == whole


def test_standard_error_that_cannot_be_opened_again_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    reading_fd, writing_fd = os.pipe()
    with open(reading_fd, "rb"), open(writing_fd, "w", buffering=1) as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setattr(os, "open", refuse)
        UnblockedStderr().write("to another user's terminal")
        monkeypatch.undo()
        assert heard_from(reading_fd) == b"to another user's terminal\n"


def test_standard_error_that_is_a_file_is_written_where_others_left_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "errors"
    with path.open("w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        text = UnblockedStderr()
        os.write(stderr.fileno(), b"theirs\n")
        text.write("ours")
        os.write(stderr.fileno(), b"theirs\n")
        monkeypatch.undo()
    assert path.read_text() == "theirs\nours\ntheirs\n"


def test_lines_that_a_full_disk_does_not_take_are_lost_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    configure(LogConfig(file=path))
    logging.getLogger("fastfuse").info("before")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, unlimited[1]))
    try:
        for _ in range(3):
            logging.getLogger("fastfuse").info("the key %s is denied", "x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    logging.getLogger("fastfuse").info("after")
    before, torn, loss, after = path.read_text().splitlines()
    assert before.endswith("before")
    assert len(torn) == 40
    assert loss.endswith("log lines were lost, as they could not be written (File too large): 3")
    assert after.endswith("after")
    [told] = capsys.readouterr().err.splitlines()
    assert told.endswith(f"the log file {path} loses lines, as they could not be written (File too large)")


def heard_from(fd: int) -> bytes:
    """Return what waits in `fd`, a pipe or a socket of datagrams, with one line to each datagram."""
    heard = b""
    while select.select([fd], [], [], 0)[0]:
        heard += os.read(fd, 1 << 20).replace(b"\0", b"\n")
    return heard


def test_a_daemon_on_a_machine_without_syslog_is_told_that_nobody_hears_it(tmp_path: Path) -> None:
    assert not configure(LogConfig(), syslog=tmp_path / "absent")
    logging.getLogger("fastfuse.x").info("mounted")


def test_an_exception_that_nobody_catches_goes_where_the_lines_go(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig(json=True))
    error = RuntimeError("unforeseen")
    sys.excepthook(RuntimeError, error, None)
    fields = json.loads(capsys.readouterr().err)
    assert (fields["level"], fields["message"]) == ("critical", "this is a bug in fastfuse: unforeseen")
    assert "RuntimeError: unforeseen" in fields["exception"]


def test_an_error_is_a_sentence_and_a_hint_or_as_json_a_record_of_the_log() -> None:
    text = command_text("no such bucket\x1b", hint="check its name", exit_code=4, json=False)
    assert text == "fastfuse: error: no such bucket\\x1b\nhint: check its name"
    assert command_text("broken", hint="", exit_code=1, json=False) == "fastfuse: error: broken"
    fields = json.loads(command_text("no such bucket", hint="check its name", exit_code=4, json=True))
    wanted = {"level": "error", "message": "no such bucket", "hint": "check its name", "exit_code": 4}
    assert fields.items() >= wanted.items()


@pytest.mark.parametrize("name", ["log", "link"])
def test_a_log_file_is_not_for_everybody_whichever_process_creates_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to("log-1")
    path = tmp_path / name
    before = os.umask(0)
    try:
        configure(LogConfig(file=path))
        assert path.stat().st_mode & 0o777 == 0o640
        path.rename(tmp_path / "log.1")  # as logrotate does
        os.umask(0o077)
        logging.getLogger("fastfuse").info("after the rotation")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    assert "after the rotation" in path.read_text()


def test_a_log_file_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    path.chmod(0o604)
    configure(LogConfig(file=path))
    assert path.stat().st_mode & 0o777 == 0o604


def test_a_file_that_cannot_be_opened_again_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "logs"
    directory.mkdir()
    configure(LogConfig(file=directory / "log"))
    (directory / "log").unlink()
    directory.rmdir()
    logging.getLogger("fastfuse").info("lost")
    assert "No such file" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_that_may_not_enter_the_directory_of_the_file_writes_to_the_one_that_it_has(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o700)
    configure(LogConfig(file=tmp_path / "log"))

    def log_as_nobody() -> None:
        become_nobody()
        logging.getLogger("fastfuse").info("from nobody")

    assert wait_child(fork_child(log_as_nobody)) == 0
    assert "from nobody" in (tmp_path / "log").read_text()


def test_a_log_file_on_a_file_system_without_modes_is_written_and_elsewhere_never_for_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, _mode: int) -> None:
        assert os.fstat(fd).st_mode & 0o777 == 0o640
        raise PermissionError

    monkeypatch.setattr(os, "fchmod", refuse)
    before = os.umask(0)
    try:
        configure(LogConfig(file=tmp_path / "log"))
    finally:
        os.umask(before)
    logging.getLogger("fastfuse").info("written")
    assert "written" in (tmp_path / "log").read_text()
