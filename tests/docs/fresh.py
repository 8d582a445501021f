"""``make readme``: run the commands of the pages that need a fresh machine, exactly as they are written.

They install Debian packages, talk to a running systemd, or to Docker. So the machine is `tests/system/booted.py`, and
nothing of this one is changed but Docker's images; without Docker, its section is skipped. AWS is a server of this
process; containers share the host's network to reach it.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench.server import Server
from tests.docs.blocks import AWS_CONFIG, COMMANDS, ROOT, blocks_of
from tests.system.booted import Booted, copy_of_the_sources

_CLONE = "/root/fastfuse"
# Whatever the engine's own network is: the server is on the host's.
_DOCKER = """#!/bin/sh
command=$1
shift
case $command in build | run) set -- --network host "$@" ;; esac
exec {docker} "$command" "$@"
"""
_NAMES = ["part-00000.tfrecord", "part-00001.tfrecord"]


class _Reader:
    """Types commands on the fresh machine, and those of Docker on this one; says what is typed."""

    def __init__(self, machine: Booted, docker: str, scratch: Path) -> None:
        self.docker = docker
        self._machine = machine
        self._environment = {"PATH": f"{scratch}/bin:/usr/bin:/bin", "HOME": str(scratch / "home")}

    def on_fresh_machine(self, script: str) -> str:
        return self._machine.run(script, _CLONE)

    def here(self, script: str) -> str:
        print("\n".join(f"== {line}" for line in script.splitlines()), flush=True)
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        print(done.stdout, flush=True)
        if done.returncode:
            raise SystemExit(f"this ended with {done.returncode}: {script}")
        return done.stdout


def _blocks(page: str, heading: str) -> list[str]:
    return [block.text for block in blocks_of(page) if block.heading == heading and block.language in COMMANDS]


def _expect(found: str, *wanted: str) -> None:
    if missing := [text for text in wanted if text not in found]:
        raise SystemExit(f"not seen: {missing}")


def _install(reader: _Reader, blocks: list[str]) -> None:
    for block in blocks:
        reader.on_fresh_machine(block)
    reader.on_fresh_machine("cd / && fastfuse demo --shards 2 --shard-size 20MiB --small-files 100")


def _try(reader: _Reader, blocks: list[str]) -> None:
    for block in blocks:
        reader.on_fresh_machine(block)


def _serve(reader: _Reader, blocks: list[str]) -> None:
    install, start = blocks
    reader.on_fresh_machine(install)
    reader.on_fresh_machine("sed -i 's|^FASTFUSE_SOURCE=.*|FASTFUSE_SOURCE=s3://my-bucket/train|' /etc/fastfuse/*.env")
    reader.on_fresh_machine("systemd-analyze verify --man=no fastfuse@training.service")
    reader.on_fresh_machine(start)
    _expect(reader.on_fresh_machine("ls /opt/ml/input/data/training"), *_NAMES)
    reader.on_fresh_machine("systemctl reload fastfuse@training")
    reader.on_fresh_machine("systemctl stop fastfuse@training; ! grep fuse.fastfuse /proc/mounts")


def _contain(reader: _Reader, blocks: list[str]) -> None:
    start, look_and_stop = blocks
    try:
        reader.here(start)
        with subprocess.Popen(
            [reader.docker, "logs", "--follow", "train"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as logs:
            assert logs.stdout is not None
            lines = []
            for line in logs.stdout:
                lines.append(line)
                if " mounted s3://" in line:
                    break
            logs.terminate()
        _expect("".join(lines), " mounted s3://")
        _expect(reader.here(look_and_stop), *_NAMES)
        state = [reader.docker, "inspect", "--format", "{{.State.ExitCode}}", "train"]
        _expect(subprocess.run(state, capture_output=True, text=True, check=True).stdout, "0")
    finally:
        subprocess.run([reader.docker, "rm", "--force", "train"], capture_output=True, check=False)


# By page and heading, in the order in which they are run.
SECTIONS: dict[tuple[str, str], Callable[[_Reader, list[str]], None]] = {
    ("README.md", "Install"): _install,
    ("docs/USAGE.md", "As a service"): _serve,
    ("README.md", "Try it"): _try,
    ("docs/USAGE.md", "In a container"): _contain,
}


def main() -> None:
    """Run every section; ends with what went wrong first."""
    docker = shutil.which("docker") or "docker"
    has_docker = (
        shutil.which(docker) and not subprocess.run([docker, "info"], capture_output=True, check=False).returncode
    )
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastfuse-readme-")))
        for name in ("bin", "data/train", "home/.aws"):
            (scratch / name).mkdir(parents=True)
        for name in _NAMES:
            (scratch / "data/train" / name).write_text(name)
        server = stack.enter_context(Server(scratch / "data", bucket="my-bucket", workers=1))
        (scratch / "home/.aws/config").write_text(AWS_CONFIG.format(endpoint_url=server.endpoint_url))
        (scratch / "bin/docker").write_text(_DOCKER.format(docker=docker))
        (scratch / "bin/docker").chmod(0o755)
        machine = stack.enter_context(Booted(scratch))
        copy_of_the_sources(machine.files / _CLONE[1:])
        shutil.copytree(scratch / "home/.aws", machine.files / "root/.aws")
        reader = _Reader(machine, docker, scratch)
        for (page, heading), follow in SECTIONS.items():
            if follow is _contain and not has_docker:
                print("== skipped, because no Docker engine answers: In a container")
                continue
            print(f"== {page}: {heading}", flush=True)
            follow(reader, _blocks(page, heading))
    print("every command of the pages did what they say")


if __name__ == "__main__":
    main()
