"""The peers: rclone, which comes in a wheel, and whatever else is on the PATH; each tuned for streaming, read-only."""

import shutil
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.mounting import Mounted, UnavailableError, environment_for, foreground, make_mountpoint
from bench.server import Server

__all__ = ["OTHERS", "RCLONES", "rclone"]

_REGION = "us-east-1"


@contextmanager
def rclone(server: Server, place: Path, *options: str) -> Iterator[Mounted]:
    """``rclone mount``."""
    root = make_mountpoint(place)
    remote = f":s3,provider=Other,list_version=2,env_auth,region={_REGION},endpoint='{server.endpoint_url}':"
    command = [str(Path(sysconfig.get_path("scripts"), "rclone")), "mount", remote + server.bucket, str(root)]
    command += ["--buffer-size", "64M", "--vfs-read-chunk-size", "8M", "--vfs-read-chunk-streams", "16"]
    command += ["--vfs-read-ahead", "128M", "--read-only", "--no-modtime", "--dir-cache-time", "1h"]
    command += ["--attr-timeout", "1h", "--config", "", *options]
    if server.ca_bundle is not None:
        command += ["--ca-cert", str(server.ca_bundle)]
    with foreground(command, root, environment_for(server), place / "log") as mounted:
        yield mounted


# The second without the MD5 sum that rclone computes of a file read from its start: a good part of a core.
RCLONES: dict[str, Callable[[Server, Path], AbstractContextManager[Mounted]]] = {
    "rclone": rclone,
    "rclone-unchecked": lambda server, place: rclone(server, place, "--no-checksum"),
}


def _s3fs(server: Server, root: Path) -> list[str]:
    options = [f"url={server.endpoint_url}", "use_path_request_style", f"endpoint={_REGION}", "ro", "kernel_cache"]
    options += ["listobjectsv2", "dbglevel=err"]
    options += ["parallel_count=16", "multipart_size=16", "multireq_max=64", "max_stat_cache_size=2000000"]
    return ["s3fs", server.bucket, str(root), "-f", *(word for option in options for word in ("-o", option))]


def _mount_s3(server: Server, root: Path) -> list[str]:
    command = ["mount-s3", server.bucket, str(root), "--foreground", "--read-only", "--force-path-style"]
    command += ["--endpoint-url", server.endpoint_url, "--region", _REGION]
    # Its client opens connections for so much; the default knows the networks of EC2's instances only.
    return [*command, "--maximum-throughput-gbps", "50", "--metadata-ttl", "indefinite"]


def _goofys(server: Server, root: Path) -> list[str]:
    command = ["goofys", "-f", "-o", "ro", "--endpoint", server.endpoint_url, "--region", _REGION]
    return [*command, "--stat-cache-ttl", "1h", "--type-cache-ttl", "1h", server.bucket, str(root)]


def _geesefs(server: Server, root: Path) -> list[str]:
    command = ["geesefs", "-f", "-o", "ro", "--endpoint", server.endpoint_url, "--region", _REGION]
    return [*command, "--memory-limit", "2000", "--stat-cache-ttl", "1h", server.bucket, str(root)]


def _gcsfuse(_: Server, __: Path) -> list[str]:
    raise UnavailableError("speaks Google's own API, which the loopback server does not")


@contextmanager
def _peer(name: str, server: Server, place: Path) -> Iterator[Mounted]:
    if shutil.which(name) is None:
        raise UnavailableError("is not on the PATH")
    root = make_mountpoint(place)
    with ExitStack() as stack:
        try:
            command = _COMMANDS[name](server, root)
            mounted = stack.enter_context(foreground(command, root, environment_for(server), place / "log"))
        except RuntimeError as error:
            raise UnavailableError(str(error)) from error
        yield mounted


_COMMANDS = {"s3fs": _s3fs, "mount-s3": _mount_s3, "goofys": _goofys, "geesefs": _geesefs, "gcsfuse": _gcsfuse}
OTHERS: dict[str, Callable[[Server, Path], AbstractContextManager[Mounted]]] = {
    name: partial(_peer, name) for name in _COMMANDS
}
