"""A fresh Debian, booted in a container of systemd-nspawn. It has the network of this machine and nothing else of it.

The base system is made once, by debootstrap, and copied for each use.
"""

import os
import re
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.docs.blocks import ROOT

_BASE = ROOT / "build/debian"
_PACKAGES = "bash-completion,ca-certificates,make,man-db,sudo,systemd,systemd-sysv"
# This machine's certificates: it may be behind a proxy that has some of its own.
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_BOOT_PATIENCE_S = 120.0


def copy_of_the_sources(place: Path) -> None:
    """Copy what git has or would take to a directory."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    there = b"\0".join(name for name in files.split(b"\0") if name and os.path.lexists(ROOT / os.fsdecode(name)))
    place.mkdir(parents=True)
    packed = ["tar", "--create", "--null", "--files-from=-"]
    archive = subprocess.run(packed, cwd=ROOT, input=there, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "--extract", f"--directory={place}"], input=archive, check=True)


class Booted:
    """See the module; between ``with`` and its end. `files` below its root may be written at any time."""

    def __init__(self, scratch: Path) -> None:
        self.files = scratch / "machine"
        if not _BASE.exists():
            unfinished = _BASE.with_name("debian.new")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.parent.mkdir(exist_ok=True)
            make = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(unfinished)]
            subprocess.run([*make, "http://deb.debian.org/debian"], check=True, stdout=subprocess.DEVNULL)
            unfinished.rename(_BASE)
        subprocess.run(["cp", "--archive", "--reflink=auto", str(_BASE), str(self.files)], check=True)

    def __enter__(self) -> Self:
        self.boot()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.halt()

    def boot(self) -> None:
        """Start the machine and wait until it is up."""
        command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", "--console=pipe"]
        binds = ["--bind=/dev/fuse", f"--bind-ro={CERTIFICATES}"]
        # The rules of DeviceAllow= are a program of the kernel's, in the second version of control groups only.
        unified = {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
            notices.bind(f"{folder}/notify")
            notices.settimeout(_BOOT_PATIENCE_S)
            self._container = subprocess.Popen(
                [*command, "--notify-ready=yes", "--system-call-filter=bpf", *binds, f"--directory={self.files}"],
                env=os.environ | unified | {"NOTIFY_SOCKET": f"{folder}/notify"},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            told = ""
            while not re.search(r"^READY=1$", told, re.MULTILINE):
                told += notices.recv(4096).decode() + "\n"
        found = re.search(r"^X_NSPAWN_LEADER_PID=(\d+)$", told, re.MULTILINE)
        assert found is not None
        self._first_pid = found[1]

    def halt(self) -> None:
        """Shut the machine down."""
        self._container.terminate()
        self._container.wait()

    def run(self, script: str, folder: str = "/root") -> str:
        """Type a script at the machine, show it and what it prints, and end if it fails."""
        print("\n".join(f"== {line}" for line in script.splitlines()), flush=True)
        settings = ["HOME=/root", "LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/bin:/usr/sbin", f"PIP_CERT={CERTIFICATES}"]
        enter = ["nsenter", f"--target={self._first_pid}", "--mount", "--uts", "--ipc", "--pid", "--cgroup"]
        done = subprocess.run(
            [*enter, "--root", "env", "-i", f"--chdir={folder}", *settings, "bash", "-e", "-c", script],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        print(done.stdout, flush=True)
        if done.returncode:
            raise SystemExit(f"this ended with {done.returncode}: {script}")
        return done.stdout
