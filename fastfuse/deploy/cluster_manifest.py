"""Manifests for Kubernetes, made of the templates in ``fastfuse/deploy/kubernetes``.

A template is YAML with two kinds of marks. ``{{ name }}`` becomes a value, written as JSON, which is YAML too: nothing
in a value can end it. A line whose value is missing is left out. ``{{ include FILE }}`` becomes another template, as
far to the right as the mark.

Kubernetes itself replaces ``$(NAME)`` in commands and arguments by a variable, and ``$$`` by ``$``. A value of the user
goes through that unchanged.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Final

from fastfuse.errors import ConfigurationError

__all__ = ["Deployment", "Kind", "manifest", "shipped"]

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", re.ASCII)
# A pod of a job is called after the job and its index, in 63 letters.
_MAX_NAME_LENGTH: Final = 52
# Far beyond any that is meant: an object of Kubernetes has 1.5 MB at most.
_MAX_VALUE_LENGTH: Final = 8192

# The containers have here what they share (the templates name it, too).
_MOUNTS: Final = PurePosixPath("/mnt/fastfuse")
_SHARDED: Final = 'export FASTFUSE_SHARD=$$((${JOB_COMPLETION_INDEX:?} + 1))/%d; exec fastfuse "$@"'

_MARK: Final = re.compile(r"\{\{ (include )?([\w.]+) \}\}")


class Kind(StrEnum):
    """The ways to mount in a cluster; the names of the templates and, as flags, of the options."""

    SIDECAR = "sidecar"
    JOB = "job"
    DAEMONSET = "daemonset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The mount of a cluster: its source, its readers and its memory."""

    kind: Kind
    source: str
    name: str
    namespace: str | None
    image: str
    # The place in the training container; of a DaemonSet, on the node.
    mountpoint: PurePosixPath
    memory_target: str
    memory_request_bytes: int
    memory_limit_bytes: int
    mount_options: str | None
    service_account: str | None
    # Its keys become variables of the mount: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY.
    secret: str | None
    training_image: str | None
    training_command: Sequence[str]
    hosts: int

    def __post_init__(self) -> None:
        for option, name in (
            *(("--name", self.name), ("--namespace", self.namespace)),
            *(("--service-account", self.service_account), ("--secret", self.secret)),
        ):
            if name is not None and not (_LABEL.fullmatch(name) and len(name) <= _MAX_NAME_LENGTH):
                raise ConfigurationError(
                    f"{option} {_shown(name)} cannot be a name in Kubernetes",
                    hint=f"use 1 to {_MAX_NAME_LENGTH} lowercase letters, digits and hyphens",
                )
        for option, image in ("--image", self.image), ("--training-image", self.training_image):
            if image is not None and not _IMAGE.fullmatch(image):
                raise ConfigurationError(f"{option} {_shown(image)} is not an image", hint="write it as HOST/NAME:TAG")
        place = self.mountpoint
        if not place.is_absolute() or len(place.parts) < 3 or ".." in place.parts or ":" in str(place):
            raise ConfigurationError(
                f"--mountpoint {_shown(str(place))} is not a directory in a directory",
                hint="give an absolute path without colons; its parent will hold nothing else, as in /mnt/data/train",
            )
        for text in (self.source, str(place), self.mount_options or "", *self.training_command):
            if not text.replace("\n", "").replace("\t", "").isprintable() or len(text) > _MAX_VALUE_LENGTH:
                raise ConfigurationError(
                    f"{_shown(text)} cannot stand in a manifest",
                    hint=f"values are printable, and have at most {_MAX_VALUE_LENGTH} letters",
                )


def manifest(wanted: Deployment) -> str:
    """Return the manifest of `wanted`, as YAML."""
    is_job = wanted.kind is Kind.JOB
    values: dict[str, object] = {
        "name": wanted.name,
        "namespace": wanted.namespace,
        "image": wanted.image,
        "source": _literal(wanted.source),
        "parent": str(wanted.mountpoint.parent),
        "helper_place": _literal(str(_MOUNTS / wanted.mountpoint.name)),
        "memory_target": f"--memory-target={wanted.memory_target}",
        "memory_request": _mebibytes(wanted.memory_request_bytes),
        "memory_limit": _mebibytes(wanted.memory_limit_bytes),
        "mount_options": None if wanted.mount_options is None else _literal(f"-o{wanted.mount_options}"),
        "mount_command": ["/bin/sh", "-c", _SHARDED % wanted.hosts, "sh"] if is_job else None,
        # The mount of a DaemonSet is no sidecar.
        "restart": None if wanted.kind is Kind.DAEMONSET else "Always",
        "service_account": wanted.service_account,
        "credentials": None if wanted.secret is None else [{"secretRef": {"name": wanted.secret}}],
        "training_image": wanted.training_image,
        "training_command": [_literal(word) for word in wanted.training_command] or None,
        "hosts": wanted.hosts,
    }
    return "\n".join(_filled(f"{wanted.kind}.yaml", values)) + "\n"


def shipped(path: str) -> str:
    """Return the text of a file that comes with fastfuse, by its path below ``fastfuse/deploy``."""
    return files("fastfuse.deploy").joinpath(path).read_text("utf-8")


def _filled(template: str, values: Mapping[str, object]) -> list[str]:
    lines: list[str] = []
    for line in shipped(f"kubernetes/{template}").splitlines():
        marks = _MARK.findall(line)
        if marks and marks[0][0]:
            indent = line[: line.index("{{")]
            lines += [indent + inner for inner in _filled(marks[0][1], values)]
        elif all(values[name] is not None for _, name in marks):
            lines.append(_MARK.sub(lambda mark: json.dumps(values[mark[2]], ensure_ascii=False), line))
    return lines


def _literal(text: str) -> str:
    """Return `text` so that Kubernetes hands it to a container unchanged."""
    return text.replace("$", "$$")


def _mebibytes(size_bytes: int) -> str:
    return f"{-(-size_bytes >> 20)}Mi"


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}..."
