"""A Slurm cluster of two nodes on this machine: slurmctld and two slurmd, each with a port of its own."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.filesystem.waiting import wait_until
from tests.mounting import ENVIRONMENT
from tests.servers import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")

_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge/socket
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=100
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=100
PartitionName=all Nodes=n1,n2 Default=YES State=UP
"""


@contextmanager
def cluster(place: Path) -> Iterator[dict[str, str]]:
    """Run the cluster below `place`; yield the environment of its commands once both nodes are idle."""
    for name in ("munge", "state", "n1", "n2"):
        (place / name).mkdir(mode=0o700)
    key = place / "munge/key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    config = place / "slurm.conf"
    config.write_text(_CONFIG.format(place=place, host=socket.gethostname().partition(".")[0], ports=free_ports(3)))
    environment = {**ENVIRONMENT, "SLURM_CONF": str(config)}
    munge = ["munged", "--force", "--foreground", f"--key-file={key}"]
    munge += [f"--{name}={place}/munge/{file}" for name, file in _MUNGE_FILES.items()]
    with ExitStack() as exits:
        for number, command in enumerate((munge, ["slurmctld", "-D"], *(["slurmd", "-D", "-N", n] for n in _NODES))):
            exits.enter_context(_daemon(command, environment, place / f"log{number}"))
            if command is munge:
                wait_until((place / "munge/socket").exists)
        wait_until(lambda: _states(environment) == ["idle"] * 2, lambda: str(_states(environment)))
        yield environment


_NODES = ("n1", "n2")
_MUNGE_FILES = {"socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}


@contextmanager
def _daemon(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process:
        try:
            yield
        finally:
            process.terminate()


def _states(environment: dict[str, str]) -> list[str]:
    command = ["sinfo", "--noheader", "--Node", "--format=%t"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.split()
