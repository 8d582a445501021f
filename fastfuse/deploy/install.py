"""The files that fastfuse puts into a system: units, helpers of mount(8), completion and man pages.

Each ends with a stamp, the digest of what stands before it. A file whose stamp fits is as fastfuse wrote it and may be
replaced or removed. Any other is the administrator's and is kept.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from fastfuse.deploy import shipped
from fastfuse.errors import FastfuseError

# The path of the program in the unit as it lies in the package.
_PROGRAM: Final = "/usr/local/bin/fastfuse"
_HELPER: Final = """\
#!/bin/sh
# mount(8) runs this for the file systems fastfuse and fuse.fastfuse, those of /etc/fstab included.
# `mount -f` checks fstab, and mounts nothing.
for word; do [ "$word" != -f ] || exit 0; done
exec {program} "$@"
"""
_STAMP: Final = "written by fastfuse install, sha256 "


class File(NamedTuple):
    """A file by its path below the root of the system, and what begins a comment in it."""

    path: str
    text: str
    mode: int = 0o644
    comment: str = "#"


def files(
    root: Path, prefix: str, program: str, completions: Mapping[str, str], pages: Mapping[str, str]
) -> Iterator[File]:
    """Yield every file of a system at `root` that runs fastfuse as `program`.

    `prefix` is /usr for a package of a distribution, and /usr/local beside one. `completions` are by shell, man `pages`
    by name.
    """
    share = f"{prefix}/share"
    for name in ("fastfuse@.service", "fastfuse.target"):
        yield File(f"{prefix}/lib/systemd/system/{name}", shipped(f"systemd/{name}").replace(_PROGRAM, program))
    yield File("etc/fastfuse/fastfuse.env.example", shipped("systemd/fastfuse.env.example"))
    # mount(8) looks in /sbin alone, which nearly everywhere is a link.
    sbin = "sbin" if (root / "sbin").is_dir() and not (root / "sbin").is_symlink() else "usr/sbin"
    for kind in ("fastfuse", "fuse.fastfuse"):
        yield File(f"{sbin}/mount.{kind}", _HELPER.format(program=program), 0o755)
    yield File(f"{share}/bash-completion/completions/fastfuse", completions["bash"])
    yield File(f"{share}/zsh/site-functions/_fastfuse", completions["zsh"])
    yield File(f"{share}/fish/vendor_completions.d/fastfuse.fish", completions["fish"])
    for name, text in pages.items():
        yield File(f"{share}/man/man1/{name}.1", text, comment='.\\"')


def settle(file: File, root: Path, *, remove: bool) -> str:
    """Write or remove a file below `root`. Return wrote, removed, unchanged, missing or kept."""
    path, text = root / file.path, f"{file.text}{file.comment} {_STAMP}{_digest(file.text)}\n"
    try:
        found = path.read_text("utf-8", "backslashreplace") if path.exists() else None
        if remove and found is None:
            return "missing"
        if not remove and found == text and path.stat().st_mode & 0o777 == file.mode:
            return "unchanged"
        if found is not None and not _is_as_written(found):
            return "kept"
        if remove:
            path.unlink()
            return "removed"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: systemd may read it at any time.
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(text, "utf-8")
        fresh.chmod(file.mode)
        fresh.replace(path)
        return "wrote"
    except OSError as error:
        raise FastfuseError(
            f"{path} cannot be {'removed' if remove else 'written'}: {error.strerror}",
            hint="run it as root, or name another directory with --root",
        ) from error


def writable_by_others(program: Path) -> Iterator[Path]:
    """Yield what another user than root can change: the program, a directory above it, or one above where it links."""
    for path in dict.fromkeys(each for one in (program, program.resolve()) for each in (one, *one.parents)):
        status = path.stat()
        # Groups are left out: Debian's /usr/local/bin is writable for the group staff.
        if status.st_uid != 0 or status.st_mode & 0o002:
            yield path


def _is_as_written(found: str) -> bool:
    text, _, digest = found.rpartition(_STAMP)
    body = text[: text.rfind("\n") + 1]
    return digest.rstrip("\n") == _digest(body)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
