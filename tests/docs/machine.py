"""A reader's machine for the commands of the pages: this one, seen from namespaces of its own.

Mounts, processes and ports end with it. What is written below ``/etc``, ``/mnt``, ``/opt``, ``/root`` and
``/usr/local`` goes to overlays that are gone then, too. fastfuse is where the installation puts it, and AWS is a server
on port 9000 that ``~/.aws/config`` names.
"""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.docs.blocks import AWS_CONFIG, ROOT

BUCKET = "my-bucket"

# Long enough for a loaded machine; a test that needs it has failed.
_PATIENCE_S = 60.0
_MAX_OUTPUT_BYTES = 1 << 20

# Ends when its standard input does, and as the first process of its namespace takes all others with it.
_BOOT = """
set -e
scratch=$1 python=$2
# A file system that others unmount would live on here. It goes from here, too, once they remove its mount point.
awk '$3 ~ /^fuse/ { print $2 }' /proc/mounts | while read -r place; do
    umount --lazy "$(printf %b "$place")" || ! mountpoint --quiet "$(printf %b "$place")"
done
mkdir "$scratch/overlays"
mount -t tmpfs none "$scratch/overlays"
for place in /etc /mnt /opt /root /usr/local; do
    own=$scratch/overlays$place
    mkdir -p "$own/upper" "$own/work"
    mount -t overlay -o "lowerdir=$place,upperdir=$own/upper,workdir=$own/work" none "$place"
done
for name in fastfuse sudo python; do
    ln -sf "$scratch/bin/$name" /usr/local/bin/$name
done
rm -rf /root/.aws
cp -r "$scratch/aws" /root/.aws
"$python" -c '
import fcntl, socket, struct
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))'
echo ready
exec cat
"""

_SERVER = """
import logging
from moto.server import main
logging.getLogger("werkzeug").addFilter(lambda record: "Running on" in record.getMessage())
main(["-H", "127.0.0.1", "-p", "9000"])
"""

# Makes the bucket hold exactly the objects of each line of standard input.
_FILL = """
import json, sys, boto3
bucket = boto3.resource("s3").Bucket(sys.argv[1])
bucket.create(CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
held = {}
for objects in map(json.loads, sys.stdin):
    for found in bucket.objects.all():
        if found.key not in objects:
            found.delete()
    for key, text in objects.items() - held.items():
        bucket.put_object(Key=key, Body=text.encode())
    held = objects
    print("filled", flush=True)
"""


class Machine:
    """See the module; between ``with`` and its end. `scratch` is an empty directory."""

    def __init__(self, scratch: Path) -> None:
        # Where commands are typed.
        self.folder = scratch / "work"
        self._scratch = scratch
        self._environment = {
            "HOME": "/root",
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
            "NOTIFY_SOCKET": str(scratch / "notify"),
        }

    def __enter__(self) -> Self:
        self._prepare()
        self._notify_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify_socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._notify_socket.bind(self._environment["NOTIFY_SOCKET"])
        self._first = subprocess.Popen(
            ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
             "bash", "-c", _BOOT, "boot", str(self._scratch), sys.executable],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert self._first.stdout is not None
            assert self._first.stdout.readline() == b"ready\n", "the namespaces could not be made"
            [self._first_pid] = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()
            self._server = subprocess.Popen(
                self._inside(sys.executable, "-c", _SERVER), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            assert self._server.stdout is not None
            assert any(b"Running on http" in line for line in self._server.stdout), "the server did not start"
            fill = self._inside(sys.executable, "-c", _FILL, BUCKET)
            self._filler = subprocess.Popen(fill, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._first.communicate()
        for name in ("_server", "_filler"):
            if hasattr(self, name):
                getattr(self, name).communicate()
        self._notify_socket.close()

    def fill(self, objects: Mapping[str, str]) -> None:
        assert self._filler.stdin is not None
        assert self._filler.stdout is not None
        print(json.dumps(objects), file=self._filler.stdin, flush=True)
        assert self._filler.stdout.readline() == "filled\n"

    def run(self, script: str, when_mounted: Callable[[], None] | None = None) -> str:
        """Run a script as typed and return what it prints.

        Whenever a mount in the foreground is ready, `when_mounted` is called, and the mount gets a Ctrl-C.
        """
        with tempfile.TemporaryFile() as output:
            return self._run(script, output, when_mounted)

    def _run(self, script: str, output: IO[bytes], when_mounted: Callable[[], None] | None) -> str:
        def printed() -> str:
            return os.pread(output.fileno(), _MAX_OUTPUT_BYTES, 0).decode()

        process = subprocess.Popen(
            self._inside("bash", "-e", "-c", script), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        pid_fd = os.pidfd_open(process.pid)
        try:
            while pid_fd not in (readable := self._readable(pid_fd)):
                assert readable, f"{script} hangs: {printed()}"
                self._interrupt_if_ready(when_mounted)
        finally:
            os.close(pid_fd)
            process.kill()
            process.wait()
        assert process.returncode == 0, f"{script} ended with {process.returncode}: {printed()}"
        return printed()

    def clean(self) -> None:
        self.run("! grep -q fuse.fastfuse /proc/mounts || fastfuse unmount --all --lazy")

    def _prepare(self) -> None:
        (self._scratch / "aws").mkdir()
        (self._scratch / "aws/config").write_text(AWS_CONFIG.format(endpoint_url="http://127.0.0.1:9000"))
        self.folder.mkdir()
        programs = {
            "fastfuse": f'PYTHONPATH={ROOT} exec {sys.executable} -m fastfuse "$@"',
            "python": f'exec {sys.executable} "$@"',
            "sudo": 'exec "$@"',
        }
        (self._scratch / "bin").mkdir()
        for name, command in programs.items():
            program = self._scratch / "bin" / name
            program.write_text(f"#!/bin/sh\n{command}\n")
            program.chmod(0o755)

    def _inside(self, *command: str) -> list[str]:
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        enter = ["nsenter", "--target", self._first_pid, "--mount", "--net", "--pid", f"--wd={self.folder}", "--"]
        return [*enter, "env", "-i", *variables, *command]

    def _readable(self, pid_fd: int) -> list[int]:
        readable, _, _ = select.select([self._notify_socket.fileno(), pid_fd], [], [], _PATIENCE_S)
        return readable

    def _interrupt_if_ready(self, when_mounted: Callable[[], None] | None) -> None:
        message, ancillary, _, _ = self._notify_socket.recvmsg(4096, socket.CMSG_SPACE(struct.calcsize("3i")))
        if message != b"READY=1":
            return
        [(_, _, credentials)] = ancillary
        pid, _, _ = struct.unpack("3i", credentials)
        if when_mounted is not None:
            when_mounted()
        os.kill(pid, signal.SIGINT)
