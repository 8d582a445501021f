"""Runs of one job on one host that share its channels, one run for each process of a launcher.

The first run to claim the base directory is the owner: it prepares the channels and listens at a socket in the base
directory once they can be read. The other runs, the members, wait for the claim or the socket, whichever they get
first: if an owner dies while it prepares, the kernel frees its claim, and a member becomes the owner. A connection
lasts as long as its two runs live, so each learns of the other's death. The owner takes nothing down while a member is
connected. A member says how its command has ended: the host's job has ended no better than any of its commands.

A greeting tells members which job the owner runs, and with which index and endpoint, because a member of another one
would read the wrong data.
"""

import hashlib
import json
import logging
import select
import socket
from contextlib import suppress

from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.processes.sockets import bind_privately, raise_sigio
from fastfuse.s3.aws import S3Session
from fastfuse.sagemaker.files import BaseDirInUseError, claim_base_dir, directory_at, of_another_user, path_of
from fastfuse.sagemaker.run_settings import RunSettings
from fastfuse.sagemaker.running.phases import Outcome, Phase

_log = logging.getLogger(__name__)

_NAME = ".fastfuse-shared"
_DIGEST_BYTES = hashlib.sha256().digest_size
_LOOK_EVERY_S = 0.1
# A host's processes may all come at once.
_BACKLOG = 1024
# Of the reason; as JSON each takes twelve bytes at most.
_MOST_CHARACTERS = 1000
_OUTCOME_BYTES = 16384
# What counts of a member that ends without another word.
_KILLED = Outcome(Phase.FAILED, "its run ended, and not by its command", 1)


class Members:
    """The owner's side: the runs that share the channels of this one."""

    def __init__(self, settings: RunSettings, input_fd: int) -> None:
        self._greeting = _digest(settings)
        self._path = path_of(input_fd) / _NAME
        # Each with what its run has said last. A run that was refused here has said nothing.
        self._connections: dict[socket.socket, bytes] = {}
        self._listener: socket.socket | None = None
        # The outcomes of those that have ended.
        self.outcomes: list[Outcome] = []

    def welcome(self) -> None:
        """Let members in, now that every channel can be read. SIGIO tells of each that comes or goes.

        The socket is made only now, because children that were forked before must not keep it open when we die.
        """
        # The claim is ours: whoever listened here is dead.
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        bind_privately(self._listener, self._path)
        raise_sigio(self._listener)
        self._listener.listen(_BACKLOG)

    def look(self) -> bool:
        """Take in members that came, drop those that ended, and return whether any is left."""
        if self._listener is None:
            return False
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                raise_sigio(connection)
                with suppress(ConnectionError):  # it ended at once
                    connection.send(self._greeting)
                self._connections[connection] = b""
        for connection in [item for item in self._connections if self._listen_to(item)]:
            connection.close()
            if said := self._connections.pop(connection):
                phase, text, exit_code = json.loads(said)
                self.outcomes.append(Outcome(Phase(phase), f"another task of this host: {text}", exit_code))
        return bool(self._connections)

    def _listen_to(self, connection: socket.socket) -> bool:
        """Take in what the member says, and return whether it is gone."""
        try:
            while said := connection.recv(_OUTCOME_BYTES, socket.MSG_DONTWAIT):
                self._connections[connection] = said
        except BlockingIOError:
            return False
        except OSError:  # it has ended without reading the greeting
            pass
        return True

    def close(self) -> None:
        """Let no more members in. One that was not greeted waits for the claim, and is the next owner."""
        if self._listener is None:
            return
        with suppress(OSError):  # as in an outage of a network's disk; the channels are taken down next
            self._path.unlink()
        # A process that was forked since holds copies of these sockets, which stay open when ours are closed.
        self._listener.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            while True:
                self._connections[self._listener.accept()[0]] = b""
        for connection in self._connections:
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._listener.close()
        self._listener = None


def claim_or_join(settings: RunSettings) -> int | socket.socket:
    """Wait for the channels or for the right to prepare them; return the owner's end, or the descriptor of our claim.

    Raises:
        ConfigurationError: the owner runs another job, or the base directory cannot be made.
        DiskError: the disk is full.
    """
    paths = settings.paths
    is_told = False
    while True:
        with suppress(BaseDirInUseError):
            return claim_base_dir(paths)
        with directory_at(paths.input, paths.base) as input_fd:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if (greeting := _greeted(connection, str(path_of(input_fd) / _NAME))) is not None:
                break
            connection.close()
        if not is_told:
            _log.info("waiting for the run that prepares the channels below %s", paths.base)
            is_told = True
        select.select([], [], [], _LOOK_EVERY_S)
    if greeting != _digest(settings):
        connection.close()
        raise ConfigurationError(
            f"the run that prepared the channels below {paths.base} has another job, index or endpoint, or is of"
            " another host",
            hint="give each job, and each host of a job, another --base-dir, and its tasks the same options",
        )
    if settings.metrics_listen is not None:
        _log.info("the run that prepared the channels serves the metrics")
    tell_outcome(connection, _KILLED)
    return connection


def tell_outcome(owner: socket.socket, outcome: Outcome) -> None:
    """Tell the owner how this member ends, in the place of what it was told before."""
    with suppress(OSError):  # it is gone
        owner.send(json.dumps((outcome.phase, outcome.text[:_MOST_CHARACTERS], outcome.exit_code)).encode())


def _greeted(connection: socket.socket, path: str) -> bytes | None:
    """Return the greeting of the owner at the socket; None if none is ready there."""
    try:
        connection.connect(path)
        return connection.recv(_DIGEST_BYTES) or None
    except (FileNotFoundError, ConnectionError):
        return None
    except PermissionError as error:
        raise of_another_user() from error


def _digest(settings: RunSettings) -> bytes:
    """Return what is equal for runs that may share: the job's channels, where they come from, and the host."""
    endpoint_url = S3Session(settings.connection).endpoint_url
    shared = (settings.channels, settings.origins, settings.cluster, settings.shard_by_bytes, endpoint_url)
    return hashlib.sha256(repr(shared).encode(errors="surrogateescape")).digest()


def has_ended(connection: socket.socket) -> bool:
    """Return whether the run at the other end is gone, and with an owner its channels."""
    try:
        return not connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
