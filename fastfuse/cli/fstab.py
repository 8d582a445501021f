"""``-o`` options as ``mount(8)``, fstab and systemd's mount units pass them on.

A line in fstab reads::

    s3://BUCKET/PREFIX  /mnt/data  fuse.fastfuse  ro,_netdev,allow_other,region=eu-west-1  0 0

and mount(8) then runs ``fastfuse s3://BUCKET/PREFIX /mnt/data -o rw,...``, having added options of its own: through
``/sbin/mount.fuse.fastfuse``, which ``fastfuse install`` puts there, or else through mount.fuse3 and PATH.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fastfuse.cli import messages
from fastfuse.cli.help_pages import Command
from fastfuse.cli.instead import instead_of
from fastfuse.errors import ConfigurationError

# Options for mount(8), systemd or the boot order; of libfuse for what is always so; and those without effect on a
# read-only mount that has no set-uid files, devices or links. mount(8) writes `rw` for `defaults`.
# fmt: off
_IGNORED: Final = frozenset({
    "ro", "rw", "defaults", "auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner", "group",
    "nogroup", "_netdev", "nofail", "fail", "dev", "suid", "relatime", "norelatime", "strictatime", "nostrictatime",
    "diratime", "nodiratime", "lazytime", "nolazytime", "mand", "nomand", "silent", "loud", "comment", "helper",
    "uhelper", "nosymfollow", "kernel_cache", "auto_cache", "big_writes", "max_read", "entry_timeout", "attr_timeout",
})
# fmt: on
_IGNORED_PREFIXES: Final = ("x-", "X-")
# The options that libfuse 3.14 takes in its own `-o` (lib/mount.c). SELinux labels go on to the kernel.
# fmt: off
_KERNEL: Final = frozenset({
    "nodev", "nosuid", "noexec", "exec", "noatime", "atime", "sync", "async", "dirsync", "default_permissions",
    "context", "fscontext", "defcontext", "rootcontext",
})
# fmt: on


class MountCommand(Command):
    """A command that takes ``-o`` as mount(8) passes it: fastfuse's own options in it are its long options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 -- typer keeps the type to itself
        own = {
            name.removeprefix("--").replace("-", "_"): not getattr(parameter, "is_flag", False)
            for parameter in self.params
            for name in parameter.opts
            if name.startswith("--") and name != "--mount-option"
        }
        if asks_for_writing(args):
            messages.warn(
                "-o rw does not make the mount writable",
                hint="write ro in its place, in fstab in place of defaults; every write fails with EROFS",
                words=args,
            )
        return super().parse_args(ctx, expand(args, own))


def helper_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command line for those of ``fastfuse s3://...``, as mount(8) calls fastfuse.

    Its own ``-n``, ``-s`` and ``-t TYPE`` are left out: they change nothing here.
    """
    if not (arguments and arguments[0].startswith("s3://")):
        return list(arguments)
    words, rest = ["mount", "--daemon"], iter(arguments)
    for word in rest:
        if word == "-t":
            next(rest, None)
        elif word not in ("-n", "-s"):
            words.append(word)
    return words


def is_there(arguments: Sequence[str]) -> bool:
    """Return whether mount(8) asks for a live mount once more, as ``mount -a`` does if the source's name is quoted."""
    if len(arguments) < 2 or not arguments[0].startswith("s3://"):
        return False
    from fastfuse.filesystem.mounting.mount_settings import quoted
    from fastfuse.filesystem.mounting.mountpoint import errno_of_statvfs, find_mount

    source, name = arguments[0], quoted(arguments[0])
    if name == source:
        return False  # mount(8) knows it again
    entry = find_mount(Path(arguments[1]))
    return entry is not None and entry.is_ours and entry.source == name and errno_of_statvfs(entry.path) == 0


def expand(arguments: Sequence[str], own: Mapping[str, bool]) -> list[str]:
    """Rewrite each ``-o a,b=c`` as the long options it stands for; the kernel's options stay, one per ``-o``.

    `own` maps the long options, with underscores, to whether each takes a value. Options to ignore are left out.

    Raises:
        ConfigurationError: options that nobody knows, or one without the value that it needs.
    """
    words, unknown = list[str](), dict[str, str]()
    for is_option, text in _pieces(arguments):
        found = _translate(text, own) if is_option else [text]
        if found is None:
            name = text.partition("=")[0]
            unknown[name] = instead_of(name) or "any long option of 'fastfuse mount --help-all' can be given here"
        words += found or ()
    if not unknown:
        return words
    if len(unknown) == 1:
        [(names, hint)], what = unknown.items(), "is not a mount option"
    else:
        names, what = ", ".join(unknown), "are not mount options"
        hint = "; ".join(f"{name}: {text}" for name, text in unknown.items())
    raise ConfigurationError(f"-o {names} {what} that fastfuse knows", hint=hint)


def asks_for_writing(arguments: Sequence[str]) -> bool:
    """Return whether the last ``ro`` or ``rw`` among the options of all ``-o`` is ``rw``; mount(8) always gives one."""
    given = [text for is_option, text in _pieces(arguments) if is_option and text in ("ro", "rw")]
    return given[-1:] == ["rw"]


def _pieces(arguments: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """Yield every option of each ``-o``, or ``--mount-option``, with True, and every other argument with False."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            yield from ((False, text) for text in (argument, *rest))
        elif argument.startswith(("-o", "--mount-option=")) or argument == "--mount-option":
            is_apart = argument in ("-o", "--mount-option")
            options = next(rest, None) if is_apart else re.sub("^(-o|--mount-option=)", "", argument)
            if options is None:
                yield False, argument
            else:
                yield from ((True, option) for option in _split(options))
        else:
            yield False, argument


def _split(text: str) -> list[str]:
    # libfuse's convention: a comma inside a value is written `\,`.
    return [option.replace("\\,", ",") for option in re.split(r"(?<!\\),", text) if option]


def _translate(option: str, own: Mapping[str, bool]) -> list[str] | None:
    """Return the arguments for one option of ``-o``; None for one that nobody knows."""
    name, equals, value = option.partition("=")
    key = name.replace("-", "_")
    if key in own:
        if own[key] and not value:
            raise ConfigurationError(f"-o {name} needs a value", hint=f"write it as -o {name}=VALUE")
        return [f"--{key.replace('_', '-')}{equals}{value}"]
    if name in _KERNEL:
        return ["-o", option]
    if name in _IGNORED or name.startswith(_IGNORED_PREFIXES):
        return []
    if name == "remount":
        hint = "unmount it, and mount it again"
        raise ConfigurationError("-o remount: a mount keeps the options that it was made with", hint=hint)
    return None
