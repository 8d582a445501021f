"""Does on this machine what Kubernetes does with a container of a manifest, as far as it matters to a mount.

Each container is a process in a mount namespace of its own, with the user, the rights, the volumes and the propagation
that its manifest says. Its root file system is this machine's.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from tests.mounting import ENVIRONMENT

Container = Mapping[str, Any]

_PROPAGATION = {"Bidirectional": "--make-rshared", "HostToContainer": "--make-rslave", None: "--make-rprivate"}


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by the variable, if there is one, and ``$$`` by ``$``, as Kubernetes does in arguments."""

    def replaced(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replaced, text)


def variables(container: Container, **fields: str) -> dict[str, str]:
    """Return the variables that a container gets from its manifest, with the `fields` of its pod."""
    own = {
        one["name"]: fields[one["valueFrom"]["fieldRef"]["fieldPath"].rpartition(".")[2]]
        for one in container.get("env", ())
    }
    names = ("PATH", *(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") if "envFrom" in container else ()))
    return {name: ENVIRONMENT[name] for name in names} | {"PYTHONDONTWRITEBYTECODE": "1"} | own


class Node:
    """A directory for the volumes of pods, whose mounts the containers share as they ask for."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def working(self) -> Iterator["Node"]:
        subprocess.run(["mount", "--bind", self.root, self.root], check=True)
        subprocess.run(["mount", "--make-shared", self.root], check=True)
        try:
            yield self
        finally:
            subprocess.run(["umount", "--recursive", "--lazy", self.root], check=True)

    def volume(self, name: str) -> Path:
        path = self.root / name
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
        return path

    @contextmanager
    def running(self, container: Container, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
        """Run a container until the end of the block, or its own."""
        # The entry point of the image is fastfuse.
        entry = container.get("command", [sys.executable, "-m", "fastfuse"])
        words = [*entry, *container.get("args", ())]
        command = [expanded(word, environment) for word in words]
        process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", self._start(container), "sh", *command],
            env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        with process:
            try:
                yield process
            finally:
                process.terminate()

    def has(self, container: Container, path: str) -> bool:
        """Return whether a container has something at `path`, in one of its volumes."""
        for mount in container["volumeMounts"]:
            if PurePosixPath(path).is_relative_to(mount["mountPath"]):
                return (self.volume(mount["name"]) / PurePosixPath(path).relative_to(mount["mountPath"])).exists()
        return False

    def _start(self, container: Container) -> str:
        """Return a script that makes the container of this namespace and becomes its command."""
        rights = container["securityContext"]
        mounts = container["volumeMounts"]
        lines = ["set -e", "mount --make-private /"]
        for top in {PurePosixPath(mount["mountPath"]).parts[1] for mount in mounts}:
            lines += [f"mount --make-private /{top} 2>&- || true", f"mount -t tmpfs none /{top}"]
        for mount in mounts:
            path, source = mount["mountPath"], self.volume(mount["name"])
            lines += [f"mkdir -p {path}", f"mount --rbind {source} {path}"]
            lines += [f"mount {_PROPAGATION[mount.get('mountPropagation')]} {path}"]
            if mount.get("readOnly"):
                lines.append(f"mount -o remount,bind,ro {path}")
        if rights.get("readOnlyRootFilesystem"):
            lines.append("mount -o remount,bind,ro /")
        options = []
        if "runAsUser" in rights:
            user, group = rights["runAsUser"], rights.get("runAsGroup", 0)
            options += [f"--reuid={user}", f"--regid={group}", "--clear-groups"]
        if rights.get("capabilities", {}).get("drop") == ["ALL"]:
            options += ["--bounding-set=-all", "--inh-caps=-all"]
        if rights.get("allowPrivilegeEscalation") is False:
            options.append("--no-new-privs")
        lines.append(f'exec setpriv {" ".join(options)} -- "$@"')
        return "\n".join(lines)
