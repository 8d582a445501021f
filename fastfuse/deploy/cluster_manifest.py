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
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from fastfuse.deploy import shipped
from fastfuse.errors import ConfigurationError

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", re.ASCII)
# A pod of a job is called after the job and its index, in 63 letters.
_MAX_NAME_LENGTH: Final = 52

# The containers have here what they share (the templates name it, too).
_MOUNTS: Final = PurePosixPath("/mnt/fastfuse")
_SHARDED: Final = 'export FASTFUSE_SHARD=$$((${JOB_COMPLETION_INDEX:?} + 1))/%d; exec fastfuse "$@"'

_MARK: Final = re.compile(r"\{\{ (include )?([\w.]+) \}\}")


class Kind(StrEnum):
    """The ways to mount in a cluster; the names of the templates and, as flags, of the options."""

    SIDECAR = "sidecar"
    JOB = "job"
    DAEMONSET = "daemonset"


def manifest(
    kind: Kind,
    source: str,
    mountpoint: PurePosixPath,
    *,
    names: Mapping[str, str | None],
    images: Mapping[str, str | None],
    memory_target: str,
    memory_bytes: tuple[int, int],
    mount_options: str | None,
    training_command: Sequence[str],
    hosts: int,
) -> str:
    """Return a manifest as YAML.

    `names` are those in Kubernetes, `images` those of containers, both by the option that gives them. `memory_bytes`
    are request and limit. `mountpoint` is in the training container; of a DaemonSet, on the node.

    Raises:
        ConfigurationError: something that Kubernetes would refuse, or that cannot be written down.
    """
    _check_names(names, images)
    if not mountpoint.is_absolute() or len(mountpoint.parts) < 3 or {"..", ":"} & {*mountpoint.parts, *str(mountpoint)}:
        raise ConfigurationError(
            f"--mountpoint {str(mountpoint)!r} is not a directory in a directory",
            hint="give an absolute path without colons; its parent will hold nothing else, as in /mnt/data/train",
        )
    for text in (source, str(mountpoint), mount_options or "", *training_command):
        if not text.replace("\n", "").replace("\t", "").isprintable():
            raise ConfigurationError(f"{text!r} cannot stand in a manifest", hint="give printable characters only")
    secret = names["--secret"]
    values: dict[str, object] = {
        "name": names["--name"],
        "service_account": names["--service-account"],
        # Its keys become variables of the mount: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY.
        "credentials": None if secret is None else [{"secretRef": {"name": secret}}],
        "image": images["--image"],
        "training_image": images["--training-image"],
        "source": _literal(source),
        "parent": str(mountpoint.parent),
        "helper_place": _literal(str(_MOUNTS / mountpoint.name)),
        "memory_target": f"--memory-target={memory_target}",
        "memory_request": _mebibytes(memory_bytes[0]),
        "memory_limit": _mebibytes(memory_bytes[1]),
        "mount_options": None if mount_options is None else _literal(f"-o{mount_options}"),
        "mount_command": ["/bin/sh", "-c", _SHARDED % hosts, "sh"] if kind is Kind.JOB else None,
        # The mount of a DaemonSet is no sidecar.
        "restart": None if kind is Kind.DAEMONSET else "Always",
        "training_command": [_literal(word) for word in training_command] or None,
        "hosts": hosts,
    }
    return "\n".join(_filled(f"{kind}.yaml", values)) + "\n"


def _check_names(names: Mapping[str, str | None], images: Mapping[str, str | None]) -> None:
    for option, name in names.items():
        if name is not None and not (_LABEL.fullmatch(name) and len(name) <= _MAX_NAME_LENGTH):
            raise ConfigurationError(
                f"{option} {name!r} cannot be a name in Kubernetes",
                hint=f"use 1 to {_MAX_NAME_LENGTH} lowercase letters, digits and hyphens",
            )
    for option, image in images.items():
        if image is not None and not _IMAGE.fullmatch(image):
            raise ConfigurationError(f"{option} {image!r} is not an image", hint="write it as HOST/NAME:TAG")


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
