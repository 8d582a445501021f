"""``fastfuse deploy`` prints what a cluster needs, and ``fastfuse install`` writes what a system needs."""

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from inspect import signature
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final

import typer

from fastfuse.cli.config import mount_settings, parse_part_size
from fastfuse.cli.messages import say, warn
from fastfuse.cli.options import option
from fastfuse.deploy import shipped
from fastfuse.deploy.cluster_manifest import Kind, manifest
from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.mounting.mount_settings import EXCESS_MEMORY_BYTES, MINIMUM_MEMORY_BYTES, most_worker_bytes
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sizes import format_size, parse_size
from fastfuse.version import VERSION

# docs/MEASUREMENTS.md, "Listing, names and their memory": 56 bytes an object in the table, and 135 while it is listed.
_OBJECT_BYTES: Final = 56 + 135
# For the processes beside the worker: all together had 121 MiB (docs/MEASUREMENTS.md, "The image").
_OTHER_PROCESSES_BYTES: Final = 128 << 20

# Options of the mount that are checked against this machine; `_check_mount` asks for sizes itself.
_OF_THE_POD: Final = {
    "ca_bundle",
    "sse_c_key_file",
    "cache",
    "cache_size",
    "cache_min_free",
    "memory_target",
    "part_size",
}


class Product(StrEnum):
    """The things that `fastfuse deploy` prints."""

    KUBERNETES = "kubernetes"
    GRAFANA = "grafana"
    PROMETHEUS = "prometheus"


# Files that nothing is put into.
_SHIPPED: Final = {Product.GRAFANA: "grafana/dashboard.json", Product.PROMETHEUS: "prometheus/alerts.yml"}


def deploy(
    context: typer.Context,
    product: Annotated[Product, typer.Argument(metavar="WHAT",
        help="'kubernetes': manifests for 'kubectl apply -f -'; 'grafana': a dashboard; 'prometheus': alert rules "
        "for mounts that are scraped as the job 'fastfuse'.")],
    source: Annotated[str | None, typer.Argument(metavar="S3_URI",
        help="s3://BUCKET/PREFIX, as Kubernetes is to mount it.")] = None,
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND",
        help="What the training container runs; left out, what its image says.")] = None,
    *,
    sidecar: Annotated[bool, option("--sidecar", "A pod that trains, with a mount of its own.")] = False,
    job: Annotated[bool, option("--job", "An indexed job, each pod of which gets its shard.")] = False,
    daemonset: Annotated[bool, option("--daemonset", "A mount on each node, for all its pods.")] = False,
    training_image: Annotated[str | None, option("--training-image IMAGE",
        "The image that trains, of --sidecar and --job.")] = None,
    hosts: Annotated[int, option("--hosts N", "Pods of --job, and shards.", min=1, max=100_000)] = 1,
    mountpoint: Annotated[str, option("--mountpoint PATH",
        "Where the training container, or the node, has the data.")] = "/opt/ml/input/data/training",
    memory_target: Annotated[str, option("--memory-target SIZE",
        "As of 'fastfuse mount'. The pod requests what goes with it, too.")] = "1GiB",
    objects: Annotated[int, option("--objects N",
        "Objects of the source, for the memory of their table.", min=1, max=10**10)] = 1_000_000,
    mount_option: Annotated[str | None, option("-o --mount-option OPTIONS",
        "More options of the mount, as in fstab: region=eu-west-1,training.")] = None,
    image: Annotated[str, option("--image IMAGE", "The image of fastfuse.")] = f"fastfuse:{VERSION}",
    name: Annotated[str, option("--name NAME", "What it is called in the cluster.")] = "fastfuse",
    service_account: Annotated[str | None, option("--service-account NAME",
        "The service account, whose role may read the source.")] = None,
    secret: Annotated[str | None, option("--secret NAME",
        "A secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.")] = None,
) -> int:  # fmt: skip
    """Print manifests, a dashboard, or alert rules.

    In Kubernetes a small privileged container mounts. The one that reads S3 and the one that trains have no rights.
    """
    if product in _SHIPPED:
        if given := [one.opts[0] for one in context.command.params if _is_given(context, one)]:
            raise ConfigurationError(f"{product} takes no {given[0]}", hint="it goes with kubernetes")
        say(shipped(_SHIPPED[product]).rstrip("\n"))
        return 0
    if source is None:
        raise ConfigurationError("kubernetes takes an S3_URI", hint="write it as s3://BUCKET/PREFIX")
    kind = _kind({Kind.SIDECAR: sidecar, Kind.JOB: job, Kind.DAEMONSET: daemonset}, training_image, command, hosts)
    uri = S3Uri.given(source)
    target_bytes = parse_size(memory_target, "--memory-target")
    if target_bytes < MINIMUM_MEMORY_BYTES:
        raise ConfigurationError(
            f"--memory-target {memory_target} is less than {format_size(MINIMUM_MEMORY_BYTES)}", hint="give more"
        )
    _check_mount(context, str(uri), memory_target, mount_option, shard=f"1/{hosts}" if kind is Kind.JOB else "")
    table_bytes, limit_bytes = objects * _OBJECT_BYTES, most_worker_bytes(target_bytes) + _OTHER_PROCESSES_BYTES
    names = {"--name": name, "--service-account": service_account, "--secret": secret}
    made = manifest(
        kind,
        str(uri),
        PurePosixPath(mountpoint),
        names=names,
        images={"--image": image, "--training-image": training_image},
        memory_target=memory_target,
        memory_bytes=(target_bytes + EXCESS_MEMORY_BYTES + table_bytes, limit_bytes + table_bytes),
        mount_options=mount_option,
        training_command=command or (),
        hosts=hosts,
    )
    say(made.rstrip("\n"))
    return 0


def _kind(asked: Mapping[Kind, bool], training_image: str | None, command: Sequence[str] | None, hosts: int) -> Kind:
    """Return the one kind that is `asked` for, if the other options go with it."""
    kinds = [kind for kind, is_asked in asked.items() if is_asked]
    if len(kinds) != 1:
        raise ConfigurationError("kubernetes takes one of --sidecar, --job and --daemonset", hint="give one of them")
    [kind] = kinds
    trains = kind is not Kind.DAEMONSET
    if trains != (training_image is not None) or (command and not trains):
        raise ConfigurationError(
            "--training-image and COMMAND go with --sidecar and --job, which need the image",
            hint="with --daemonset, pods of your own use the mount",
        )
    if hosts > 1 and kind is not Kind.JOB:
        raise ConfigurationError("--hosts says how many pods --job starts", hint="give --job, or leave it out")
    return kind


def _check_mount(
    context: typer.Context, source: str, memory_target: str, mount_option: str | None, *, shard: str
) -> None:
    """Check the mount's command line now: a pod would say what is wrong with it where nobody looks.

    Files, and how much memory there is, are not looked at: they are the pod's.

    Raises:
        ConfigurationError: the pod's mount would refuse an option, or an option takes the place of one that it needs.
    """
    own = {"fuse_socket": "/run/fastfuse/socket", "metrics_listen": "9567", "memory_target": memory_target}
    own |= {"shard": shard} if shard else {}
    options = [] if mount_option is None else [f"-o{mount_option}"]
    # The manifest says the first itself, and a pod has no daemon.
    taken = (own.keys() | {"background"}) & _given(context, source, options).keys()
    if taken:
        name = min(taken).replace("background", "daemon").replace("_", "-")
        hint = {"memory-target": "give --memory-target itself", "shard": "--hosts says how many shards there are"}
        raise ConfigurationError(
            f"-o {name} does not go with what the manifest has", hint=hint.get(name, "leave it out")
        )
    words = [f"--{name.replace('_', '-')}={value}" for name, value in own.items()]
    given = _given(context, source, [*words, *options])
    known = signature(mount_settings).parameters.keys() - _OF_THE_POD
    mount_settings(**{name: value for name, value in given.items() if name in known})
    parse_part_size(given.get("part_size", "8MiB"), parse_size(memory_target, "--memory-target"))


def _given(context: typer.Context, source: str, words: list[str]) -> dict[str, Any]:
    """Return the options of a mount's command line. The environment is that of this shell, and does not count."""
    mount: Any = context.find_root().command.commands["mount"]  # type: ignore[attr-defined]
    parsed = mount.make_context("mount", [source, *words])
    return {
        name: value for name, value in parsed.params.items() if parsed.get_parameter_source(name).name == "COMMANDLINE"
    }


def _is_given(context: typer.Context, parameter: Any) -> bool:  # noqa: ANN401 -- typer keeps the type to itself
    return parameter.name != "product" and context.params.get(parameter.name) not in (parameter.default, None, ())


# A unit and a shell take such a path without quotes.
_PLAIN: Final = re.compile(r"/[\w./+@-]+", re.ASCII)


def install(
    context: typer.Context,
    *,
    root: Annotated[Path, option("--root DIR", "Write below this directory, for a package or an image.")] = Path("/"),
    prefix: Annotated[str, option("--prefix DIR", "Where lib and share are; /usr for a package.")] = "/usr/local",
    program: Annotated[str | None, option("--program FILE",
        "The fastfuse that units and mount(8) run; left out, this one.")] = None,
    remove: Annotated[bool, option("--remove", "Remove what was installed.")] = False,
) -> int:  # fmt: skip
    """Install units, helpers for fstab, completion, and man pages.

    The units are systemd's, the helpers those of mount(8), the shells bash, zsh and fish. Says what it does with each
    file, and can be repeated. Files that were changed after they were installed are kept.
    """
    from fastfuse.cli import help_files
    from fastfuse.deploy import install as system

    run_by_units = _program() if program is None else program
    for name, value in (("--program", run_by_units), ("--prefix", prefix)):
        if not _PLAIN.fullmatch(value):
            raise ConfigurationError(
                f"{name} {value!r} is no absolute path of letters, digits and ./+@_-",
                hint="systemd and mount(8) take it without quotes: choose another place",
            )
    if root == Path("/") and not remove:
        if not os.access(run_by_units, os.X_OK):
            raise ConfigurationError(f"{run_by_units} is no program", hint="name one with --program FILE")
        if (found := next(system.writable_by_others(Path(run_by_units)), None)) is not None:
            warn(
                f"root will run {run_by_units}, and users other than root can change {found}",
                hint="install fastfuse where only root can write, as README does",
                words=sys.argv,
            )
    # Every user reads man pages, whatever root's umask is.
    os.umask(0o022)
    completions = {shell: help_files.completion(shell) for shell in ("bash", "zsh", "fish")}
    pages = help_files.man_pages(context.parent)
    for file in system.files(root, prefix.strip("/"), run_by_units, completions, pages):
        outcome = system.settle(file, root, remove=remove)
        kept = " (changed since it was installed: remove it first to have it replaced)" if outcome == "kept" else ""
        say(f"{outcome:9} {root / file.path}{kept}")
    return 0


def _program() -> str:
    """Return the path of the program that runs, as it was called: a link to it stays where it is."""
    found = shutil.which(sys.argv[0])
    if found is None or Path(found).name != "fastfuse":
        raise ConfigurationError(
            "which fastfuse units and mount(8) should run cannot be told", hint="name it with --program FILE"
        )
    return os.path.abspath(found)
