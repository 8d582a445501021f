"""Where log lines go and what they look like. Nothing here decides what is worth a line."""

import errno
import json
import logging
import logging.handlers
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Final, TextIO

from fastfuse.errors import ConfigurationError
from fastfuse.log_output import READER_TIMEOUT_S, Unbuffered, Unwaiting, has_room

_OWN: Final = "fastfuse"
# The first logs most, the last least.
LEVELS: Final = ("debug", "info", "warning", "error")
# The journal listens here too, where there is one.
SYSLOG: Final = Path("/dev/log")
# Log files name objects and keys: the owner's group may read them, as under /var/log.
_LOG_MODE: Final = 0o640
# What every record has; the rest came through `extra=`.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

# No line of ours holds a secret; these are for exceptions and warnings of the S3 clients, which may quote a request.
_SECRETS: Final = (
    re.compile(r"(X-Amz-(?:Signature|Credential|Security-Token)(?:=|%3D))[^&\s\"']+", re.IGNORECASE),
    re.compile(r"(authorization[\"']?\s*[:=]\s*b?[\"']?)[^\"'\n]+", re.IGNORECASE),
    re.compile(
        r"(x-amz-(?:security-token|server-side-encryption-customer-key(?:-md5)?)[\"']?\s*[:=]\s*b?[\"']?)[^\"'\s]+",
        re.IGNORECASE,
    ),
    re.compile(
        r"((?:secret_?access_?key|session_?token|secret_?key|password)[\"']?\s*[:=]\s*[\"']?)[^\"'\s,;]+",
        re.IGNORECASE,
    ),
    re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)"),
)
# C0, DEL and C1, and the two line separators of Unicode: an object key must not forge a line or drive a terminal.
# Surrogates stand for bytes of a path that are no UTF-8, and syslog takes nothing else.
_CONTROLS: Final = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0xD800, 0xE000))
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How to log: `json` is one object per line, `verbose` adds fastfuse's own DEBUG, `file` replaces stderr."""

    json: bool = False
    verbose: bool = False
    file: Path | None = None


def _redact(text: str) -> str:
    """`text` with the values of signatures, authorization headers, tokens and URL passwords replaced."""
    for pattern in _SECRETS:
        text = pattern.sub(r"\1[redacted]", text)
    return text


def _escape_controls(text: str) -> str:
    """`text` on one line, with every control character in its ``\\x1b`` form."""
    return text.translate(_CONTROLS)


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class HumanFormatter(logging.Formatter):
    """``time LEVEL logger: message name=value``; a traceback follows on lines of its own."""

    def __init__(self, *, timed: bool = True) -> None:
        super().__init__()
        self._timed = timed

    def format(self, record: logging.LogRecord) -> str:
        words = [_time(record)] if self._timed else []
        words += [f"{record.levelname} {record.name}:", record.getMessage()]
        words += [f"{name}={value}" for name, value in _extra(record).items()]
        line = _escape_controls(" ".join(words))
        if record.exc_info:
            # Indented, so that no line of an exception's text can pass for a record.
            traceback = self.formatException(record.exc_info).split("\n")
            line += "".join(f"\n  {_escape_controls(text)}" for text in traceback)
        return _redact(line)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, logger, message, pid, the `extra` fields, and any exception."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _redact(record.getMessage()),
            "pid": record.process,
        }
        for name, value in _extra(record).items():
            # Numbers stay numbers; text may quote a request; a field never hides one of the five above.
            plain = value if isinstance(value, int | float | None) else _redact(str(value))
            fields.setdefault(name, plain)
        if record.exc_info:
            fields["exception"] = _redact(self.formatException(record.exc_info))
        return json.dumps(fields)


def formatter(config: LogConfig, *, timed: bool = True) -> logging.Formatter:
    """The formatter that `config` asks for; `timed` is for sinks that stamp lines themselves."""
    return JsonFormatter() if config.json else HumanFormatter(timed=timed)


def command_text(message: str, *, hint: str, exit_code: int = 0, json: bool) -> str:
    """Return what the command says as it fails with `exit_code`, or warns: for people, or a record of the JSON log."""
    level = logging.ERROR if exit_code else logging.WARNING
    if json:
        fields = {"name": _OWN, "levelname": logging.getLevelName(level), "levelno": level, "msg": message}
        ending = {"exit_code": exit_code} if exit_code else {}
        return JsonFormatter().format(logging.makeLogRecord(fields | {"hint": hint} | ending))
    lines = [f"fastfuse: {logging.getLevelName(level).lower()}: {message}", *([f"hint: {hint}"] if hint else [])]
    return "\n".join(_redact(_escape_controls(line)) for line in lines)


def configure(config: LogConfig, *, syslog: Path | None = None) -> bool:
    """Send every record to one sink: `config.file`, or `syslog` where that is given, or stderr.

    An exception that nobody catches goes there too. The root stays at WARNING whatever `verbose` says: the S3 and
    HTTP clients write request headers at DEBUG.

    False if the lines go nowhere: to `syslog` on a machine without it, as most containers are.

    Raises:
        ConfigurationError: the log file cannot be opened.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.addHandler(_sink(config, syslog))
    root.setLevel(logging.WARNING)
    logging.getLogger(_OWN).setLevel(logging.DEBUG if config.verbose else logging.INFO)
    sys.excepthook = _log_uncaught
    return config.file is not None or syslog is None or syslog.is_socket()


def level() -> str:
    """Return the one of `LEVELS` from which on this process logs its own lines."""
    return logging.getLevelName(logging.getLogger(_OWN).getEffectiveLevel()).lower()


def set_level(name: str) -> None:
    """Log our own lines from the level `name`, one of `LEVELS`, on. Libraries stay at WARNING, as in `configure`."""
    logging.getLogger(_OWN).setLevel(name.upper())


def _sink(config: LogConfig, syslog: Path | None) -> logging.Handler:
    handler: logging.Handler
    if config.file is not None:
        try:
            # Watched: logrotate may move the file away under a mount that lives for weeks.
            handler = _LogFile(config.file)
        except OSError as error:
            is_unread = error.errno == errno.ENXIO  # open(2)
            reason = "it is a pipe that nobody reads, or a socket" if is_unread else error.strerror
            raise ConfigurationError(
                f"--log-file {str(config.file)!r} cannot be written: {reason}",
                hint="name a file in a directory that exists and is writable",
            ) from error
    elif syslog is not None:
        # It connects when it has something to send, and again after syslog was restarted.
        handler = _Syslog(str(syslog), facility=logging.handlers.SysLogHandler.LOG_DAEMON)
        handler.ident = "fastfuse: "
    else:
        handler = _Stderr()
    handler.setFormatter(formatter(config, timed=config.file is not None or syslog is None))
    return handler


_UNREAD: Final = "nobody read them in time"


class _Unblocked(logging.Handler):
    """Loses lines rather than wait for whoever reads them, and says how many were lost.

    The pipe behind a container's stderr, a stopped terminal and a hung syslog take lines until they are full, and then
    hold up whoever writes: reads of the data would wait for the readers of the log.
    """

    _lost_count = 0
    # Why the first of them was lost, and the last line: "" if that was written.
    _lost_for = _failure = ""

    def handle(self, record: logging.LogRecord) -> bool:
        with self.lock or nullcontext():
            if self._lost_count:
                loss = _own_warning(f"log lines were lost, as {self._lost_for}: {self._lost_count}")
                if self._write(loss, timeout_s=0):
                    self._lost_count = 0
            # A reader that is merely slow is waited for; one that has stopped, only once.
            is_written = self._write(record, timeout_s=0 if self._lost_count else READER_TIMEOUT_S)
            if not is_written:
                if not self._lost_count:
                    self._lost_for = self._failure
                    self._tell_loss()
                self._lost_count += 1
            return is_written

    def handleError(self, record: logging.LogRecord) -> None:
        """Note why a line cannot be written. Other errors than the system's are mistakes of ours, and are shown."""
        error = sys.exc_info()[1]
        if isinstance(error, BlockingIOError):
            self._failure = _UNREAD
        elif isinstance(error, OSError):
            self._failure = f"they could not be written ({error.strerror or error})"
        else:
            super().handleError(record)

    def _write(self, record: logging.LogRecord, *, timeout_s: float) -> bool:
        self._failure = "" if has_room(self._output(), timeout_s=timeout_s) else _UNREAD
        return not self._failure and super().handle(record) and not self._failure

    def _output(self) -> object:
        return getattr(self, "stream", None)

    def _tell_loss(self) -> None:
        """Say elsewhere, if there is such a place, that lines are lost from now on."""


class _Stderr(_Unblocked, logging.StreamHandler[TextIO]):
    """Standard error, to which nothing is written through its own description if another can be had."""

    def __init__(self) -> None:
        super().__init__()
        with suppress(OSError, ValueError):  # a stream of a test, or one that was closed
            file = Unwaiting(self.stream.fileno())
            self.setStream(TextIOWrapper(file, self.stream.encoding, self.stream.errors, write_through=True))

    def close(self) -> None:
        """Close what was opened here; standard error stays open."""
        if isinstance(self.stream, TextIOWrapper) and isinstance(self.stream.buffer, Unwaiting):
            self.stream.close()
        super().close()


class UnblockedStderr:
    """Standard error, line by line: a line that nobody reads, or that cannot be written, is lost."""

    def __init__(self) -> None:
        self._handler = _Stderr()

    def write(self, line: str) -> None:
        """Write a line if that takes no waiting."""
        self._handler.handle(logging.makeLogRecord({"msg": line}))


class _Syslog(_Unblocked, logging.handlers.SysLogHandler):
    def _output(self) -> object:
        return getattr(self, "socket", None)


class _LogFile(_Unblocked, logging.handlers.WatchedFileHandler):
    """A log file that other users cannot read, whichever process creates it and whatever the umask is."""

    def _open(self) -> TextIOWrapper:
        return self._lines_to(Unbuffered(self.baseFilename, "ab", opener=_open_log))

    def _lines_to(self, file: Unbuffered) -> TextIOWrapper:
        # Nothing is kept back: what was lost is not written later, and closing a file on a full disk does not fail.
        return TextIOWrapper(file, self.encoding, self.errors, write_through=True)

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self._uid = os.geteuid()
        self._known = self.dev, self.ino

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if os.geteuid() == self._uid:
                super().emit(record)
                return
        except OSError:
            # A process that gave up its rights may not look for the file, or not open the one that logrotate made.
            if self.stream is None:
                self.handleError(record)
                return
        # A file that another user makes would be that user's.
        logging.StreamHandler.emit(self, record)

    def _tell_loss(self) -> None:
        if self._lost_for != _UNREAD:
            message = f"the log file {self.baseFilename} loses lines, as {self._lost_for}"
            with closing(_Stderr()) as stderr:
                stderr.setFormatter(self.formatter)
                stderr.handle(_own_warning(message))

    def moved(self) -> int:
        """Follow the file if it was moved away; return the descriptor of another than at the last call, or -1."""
        with suppress(OSError), self.lock or nullcontext():
            self.reopenIfNeeded()
        before, self._known = self._known, (self.dev, self.ino)
        return -1 if self.stream is None or before == self._known else self.stream.fileno()

    def go_on_in(self, fd: int) -> None:
        """Write to `fd` from now on, which this handler closes."""
        old = self.setStream(self._lines_to(Unbuffered(fd, "ab")))
        if old is not None:
            old.close()


def moved_file() -> int:
    """Follow the log file if it was moved away; return the descriptor of the new one, once, or -1."""
    return next((handler.moved() for handler in _log_files()), -1)


def go_on_in(fd: int) -> None:
    """Log to the new log file in `fd`, in a process that may not open it itself."""
    for handler in _log_files():
        handler.go_on_in(fd)


def _log_files() -> Iterator[_LogFile]:
    return (handler for handler in logging.getLogger().handlers if isinstance(handler, _LogFile))


def _open_log(path: str, flags: int) -> int:
    # A named pipe that nobody reads would make us wait, now or later. One that is read, as behind /dev/stderr, will do.
    flags |= os.O_NONBLOCK
    try:
        fd = os.open(path, flags | os.O_EXCL, _LOG_MODE)
        with suppress(OSError):  # a file system without modes; elsewhere, the umask may have taken the group's right
            os.fchmod(fd, _LOG_MODE)
    except FileExistsError:
        fd = os.open(path, flags, _LOG_MODE)  # a link may lead to a file that is missing
    return fd


def _own_warning(message: str) -> logging.LogRecord:
    return logging.makeLogRecord({"name": _OWN, "levelname": "WARNING", "levelno": logging.WARNING, "msg": message})


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    logging.getLogger(_OWN).critical("this is a bug in fastfuse: %s", error, exc_info=(kind, error, traceback))
