"""The privileged end of a mount that an unprivileged process serves: mount at one place, and hand the descriptor over.

A mount takes CAP_SYS_ADMIN, and in Kubernetes a container that may show its mounts to others; serving it takes nothing.
So this small process, which has no S3 client, no credentials and no network, does what takes rights. Where it mounts
comes from its own command line. Who may ask comes from the kernel (SO_PEERCRED), and that user becomes the mount's
owner.

A client connects to a Unix socket of sequenced packets. Each packet is one JSON object, a request
``{"fastfuse": 1, "request": NAME, ...}`` or its answer; an error is an answer as `children.error_message` makes it. The
requests: `mount` (with ``source``, the name to show; answered with ``device`` and ``mountpoint``, beside the
descriptor), `raise_readahead` (once INIT is answered, which resets it), `is_mounted` (of a mount whose connection to
the kernel has ended), `unmount` and `abort`. If a client hangs up without `unmount`, its mount stays
until the next client mounts or the helper ends: readers get an error from it, and find no empty directory.
"""

import array
import ctypes
import errno
import json
import logging
import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from fastfuse.errors import FastfuseError, MountError
from fastfuse.filesystem.mounting.mountpoint import (
    SUBTYPE,
    abort,
    bdi_number,
    find_mount,
    is_dead,
    is_mounted,
    new_mount,
    prepare_mountpoint,
    raise_readahead,
    unmount,
)
from fastfuse.filesystem.processes.children import error_message
from fastfuse.filesystem.processes.sockets import bind_privately, peer_uid

_log = logging.getLogger(__name__)

PROTOCOL: Final = 1
# A source of a bucket and a key, each byte of it escaped, fits several times.
MAX_PACKET_BYTES: Final = 64 << 10
_MAX_SOURCE_LENGTH: Final = 8192

_DEVICE = "/dev/fuse"
_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4  # <sys/mount.h>
# A client that neither asks nor takes its answer is gone, or means harm.
_ANSWER_WITHIN_S: Final = 1.0


def listen_at(path: Path, uid: int) -> socket.socket:
    """Return a socket at `path` that only the user `uid` and root can connect to. One that nobody serves is replaced.

    Raises:
        MountError: it cannot be made there, or another helper serves it.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as earlier:
            if path.is_socket() and earlier.connect_ex(os.fspath(path)) == errno.ECONNREFUSED:
                path.unlink()
        bind_privately(listener, path)
        os.chown(path, uid, -1, follow_symlinks=False)
        listener.listen()
    except OSError as error:
        listener.close()
        reason = "too long for a socket" if "too long" in str(error) else error.strerror
        hint = "give a path in a directory of root"
        if error.errno == errno.EPERM:
            hint = f"it takes CAP_CHOWN to give the socket to user {uid}"
        raise MountError(f"--socket {path} cannot be made: {reason}", hint=hint) from error
    return listener


def serve(mountpoint: Path, listener: socket.socket, uid: int) -> None:
    """Mount at `mountpoint` for one process of the user `uid` (or of root) after the other, until SIGTERM or SIGINT."""
    helper = Helper(mountpoint, uid)
    with listener, _told_to_stop() as stop:
        try:
            while stop not in _readable(stop, listener):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(_ANSWER_WITHIN_S)
                    if peer_uid(connection) in {0, uid}:
                        helper.uid = peer_uid(connection)
                        _serve_one(helper, connection, listener, stop)
        finally:
            helper.close()
            Path(listener.getsockname()).unlink(missing_ok=True)


def _serve_one(helper: "Helper", connection: socket.socket, listener: socket.socket, stop: int) -> None:
    """Do what one client asks until it hangs up, and refuse others meanwhile."""
    try:
        while True:
            ready = _readable(stop, listener, connection)
            if stop in ready:
                return
            if listener in ready:
                other, _ = listener.accept()
                with other, suppress(OSError):
                    other.settimeout(_ANSWER_WITHIN_S)
                    other.recv(MAX_PACKET_BYTES)  # hung up with a packet unread, it would lose the answer
                    _send(other, error_message(MountError(f"{helper.mountpoint} is served by another process")))
            if connection in ready:
                packet = connection.recv(MAX_PACKET_BYTES)
                if not packet:
                    return
                _send(connection, *helper.answer(packet))
    except (ConnectionError, TimeoutError) as error:
        _log.warning("the process that served %s is gone: %s", helper.mountpoint, error)


def _readable(*ends: int | socket.socket) -> list[int | socket.socket]:
    return select.select(ends, [], [])[0]


def _send(connection: socket.socket, answer: bytes, fd: int | None = None) -> None:
    """Send an answer, and with it `fd`, which is closed here: the mount must end with those that serve it."""
    rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    try:
        connection.sendmsg([answer], rights)
    finally:
        if fd is not None:
            os.close(fd)


class Helper:
    """What one client after the other may have done at `mountpoint`. Its user `uid` is the owner of the mount."""

    def __init__(self, mountpoint: Path, uid: int) -> None:
        self.mountpoint = mountpoint
        self.uid = uid
        self._device = ""
        # A later mount may get the device, and never this number.
        self._bdi_number = 0

    def answer(self, packet: bytes) -> tuple[bytes, int | None]:
        """Do what `packet` asks for; return the answer, and the descriptor to send with it."""
        fd: int | None = None
        try:
            asked = _request_of(packet)
            found: dict[str, Any] = {}
            match asked["request"]:
                case "mount":
                    fd, found = self._mount(asked["source"])
                case "raise_readahead":
                    raise_readahead(self._device)
                case "is_mounted":
                    is_there = self._is_there() and is_dead(self.mountpoint)
                    found = {"is_mounted": is_there, "mountpoint": str(self.mountpoint)}
                case "unmount" if self._is_there():
                    unmount(self.mountpoint, lazy=True, device=self._device)
                case "abort" if self._is_there():
                    abort(self.mountpoint, self._device)
        except FastfuseError as error:
            return error_message(error), None
        return json.dumps({"fastfuse": PROTOCOL, **found}).encode(), fd

    def close(self) -> None:
        """Take the mount away; whoever reads from it still gets an error, for nobody serves it."""
        try:
            self._take_away()
        except FastfuseError as error:
            _log.error("%s", error)

    def _take_away(self) -> None:
        """Take away the mount of the last client, and one whose process died with the helper before this one."""
        if self._is_there():
            unmount(self.mountpoint, lazy=True, device=self._device)
            _log.info("unmounted %s", self.mountpoint)
        left = find_mount(self.mountpoint)
        if left is not None and left.is_ours and is_dead(self.mountpoint):
            unmount(self.mountpoint, lazy=True, device=left.device)

    def _is_there(self) -> bool:
        is_mount = bool(self._device) and is_mounted(self.mountpoint, self._device)
        return is_mount and bdi_number(self._device) == self._bdi_number

    def _mount(self, source: str) -> tuple[int, dict[str, Any]]:
        """Mount, and return the descriptor and what the client is told."""
        self._take_away()
        self.mountpoint = prepare_mountpoint(self.mountpoint, create_parents=False)
        try:
            fd = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise MountError(f"{_DEVICE} cannot be opened by the helper: {error.strerror}") from error
        try:
            self._attach(fd, source)
            entry = new_mount(self.mountpoint)
        except BaseException:
            os.close(fd)
            raise
        self._device, self._bdi_number = entry.device, bdi_number(entry.device)
        _log.info("mounted %s for user %d", self.mountpoint, self.uid)
        return fd, {"device": entry.device, "mountpoint": str(self.mountpoint)}

    def _attach(self, fd: int, source: str) -> None:
        """Mount what `fd` serves as libfuse does (fuse(4)), on the directory that is there now, through no link."""
        options = f"fd={fd},rootmode=40000,user_id={self.uid},group_id={self.uid},default_permissions,allow_other"
        flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            place = os.open(self.mountpoint, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise MountError(f"{self.mountpoint} cannot be mounted on: {error.strerror}") from error
        try:
            target, kind = f"/proc/self/fd/{place}".encode(), f"fuse.{SUBTYPE}".encode()
            if libc.mount(os.fsencode(source), target, kind, flags, options.encode()) != 0:
                reason = os.strerror(ctypes.get_errno())
                raise MountError(
                    f"{self.mountpoint} cannot be mounted on by the helper: {reason}",
                    hint="the helper takes CAP_SYS_ADMIN: in Kubernetes, privileged: true",
                )
        finally:
            os.close(place)


def _request_of(packet: bytes) -> dict[str, Any]:
    """Return what a client asks for.

    Raises:
        MountError: it is no request of this version.
    """
    try:
        asked = json.loads(packet)
        source = asked.setdefault("source", "")
        is_known = (
            (asked["fastfuse"], type(asked["request"]), type(source)) == (PROTOCOL, str, str)
            and len(source) <= _MAX_SOURCE_LENGTH
            and source.isprintable()
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_known = False
    if not is_known or asked["request"] not in {"mount", "raise_readahead", "is_mounted", "unmount", "abort"}:
        raise MountError("the helper was asked what is no request of its version", hint="use one version of fastfuse")
    return dict(asked)


@contextmanager
def _told_to_stop() -> Iterator[int]:
    """Yield a descriptor that is readable once SIGTERM or SIGINT came; neither interrupts what is under way."""
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = signal.set_wakeup_fd(writable), [signal.signal(number, lambda *_: None) for number in numbers]
    try:
        yield readable
    finally:
        for number, handler in zip(numbers, before[1], strict=True):
            signal.signal(number, handler)
        signal.set_wakeup_fd(before[0])
        os.close(readable)
        os.close(writable)
