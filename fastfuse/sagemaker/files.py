"""The base directory of a job: what a training script finds below ``/opt/ml``, and what an earlier run left there.

The three files that describe the job are as in
https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html.

SageMaker gives each job a new instance. Here the files of an earlier run move to ``runs/<its name>`` on the same disk,
and nothing is deleted. A file in the base directory names the run whose files are there: others are not ours to move.
"""

import ctypes
import errno
import fcntl
import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Final

from fastfuse.errors import ConfigurationError, DiskError, FastfuseError
from fastfuse.filesystem.mounting.mountpoint import find_mount
from fastfuse.objects import Buffer
from fastfuse.sagemaker.description.channel import Channel, Cluster, InputMode, TrainingJob


def open_directory(path: Path, base: Path) -> int:
    """Return a descriptor of the directory `path`, made if it is missing, which lies below `base`.

    Whoever named `base` may have named a symbolic link. One below it is never followed: a job that runs as root would
    write wherever the owner of a directory likes. Each component is opened in the one before, as openat2(2) does with
    RESOLVE_NO_SYMLINKS, which old kernels and container engines do not know.

    Raises:
        OSError: it cannot be had; the error names the path.
    """
    base.mkdir(parents=True, exist_ok=True)
    names = path.relative_to(base).parts
    fd, place = os.open(base, (os.O_PATH if names else os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC), base
    for number, name in enumerate(names, 1):
        place /= name
        try:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=fd)
            # Passing through a directory takes no right to read it.
            access = os.O_PATH if number < len(names) else os.O_RDONLY
            below = os.open(name, access | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        except OSError as error:
            is_link = error.errno in {errno.ELOOP, errno.ENOTDIR} and place.is_symlink()
            reason = f"{place} is a symbolic link, and none below {base} is followed" if is_link else error.strerror
            raise OSError(error.errno, reason, str(place)) from error
        finally:
            os.close(fd)
        fd = below
    return fd


@contextmanager
def directory_at(path: Path, base: Path) -> Iterator[int]:
    """Open a directory as `open_directory` does, and close it again."""
    fd = open_directory(path, base)
    try:
        yield fd
    finally:
        os.close(fd)


LIBC: Final = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> int:
    """Return what a function of `LIBC` has just returned; raise the `OSError` that a negative number tells of."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def is_full(error: OSError) -> bool:
    """Return whether there is no room left on the disk, or in the user's share of it."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


def quoted(path: bytes | str) -> str:
    """Return the path as messages have it: a name may hold what a terminal obeys."""
    return repr(os.fsdecode(path))


def path_of(fd: int) -> Path:
    """Return a path to the open directory `fd` that leads there whatever becomes of its name; proc(5)."""
    return Path(f"/proc/self/fd/{fd}")


_FREE_SPACE: Final = "free some space"

# Where SageMaker puts everything.
BASE_DIR: Final = Path("/opt/ml")


class BaseDirInUseError(ConfigurationError):
    """Another run has claimed the base directory."""


class JobPaths:
    """The places below `base`, ``/opt/ml`` on SageMaker."""

    def __init__(self, base: Path = BASE_DIR) -> None:
        self.base = base
        self.input = base / "input"
        self.config = self.input / "config"
        self.data = self.input / "data"
        self.model = base / "model"
        self.code = base / "code"
        # A script that fails writes ``failure`` here.
        self.output = base / "output"
        self.output_data = self.output / "data"
        self.output_intermediate = self.output / "intermediate"
        self.checkpoints = base / "checkpoints"

    def of(self, container_path: str) -> Path:
        """Return the place here of a path in SageMaker's container: what is below ``/opt/ml`` lies below `base`."""
        path = Path(container_path)
        return self.base / path.relative_to(BASE_DIR) if path.is_relative_to(BASE_DIR) else path

    def channel(self, name: str) -> Path:
        """Return the directory of a channel; a Pipe channel has FIFOs there, named after it and an epoch, instead."""
        return self.data / name


def input_data_config(job: TrainingJob, cluster: Cluster) -> dict[str, dict[str, str]]:
    """Return ``inputdataconfig.json``: the channels that this host gets."""
    return {channel.name: _channel_entry(channel) for channel in job.channels if cluster.gets(channel)}


def _channel_entry(channel: Channel) -> dict[str, str]:
    # The guide's order. XGBoost's container needs every key but ContentType.
    content_type = {} if channel.content_type is None else {"ContentType": channel.content_type}
    return content_type | {
        # SageMaker has file systems in File mode only.
        "TrainingInputMode": (InputMode.FILE if channel.is_put_in_place else channel.input_mode).value,
        "S3DistributionType": "ShardedByS3Key" if channel.is_sharded else "FullyReplicated",
        "RecordWrapperType": "RecordIO" if channel.wraps_records else "None",
    }


def resource_config(cluster: Cluster) -> dict[str, object]:
    """Return ``resourceconfig.json``, with the keys that real jobs have beyond the guide's three."""
    return {
        "current_host": cluster.current_host,
        "current_instance_type": cluster.current_instance_type,
        "current_group_name": cluster.current_group,
        "hosts": list(cluster.hosts),
        "instance_groups": [
            {"instance_group_name": group.name, "instance_type": group.instance_type, "hosts": list(group.hosts)}
            for group in cluster.instance_groups
        ],
        "network_interface_name": cluster.network_interface,
    }


def write_job_files(job: TrainingJob, cluster: Cluster, paths: JobPaths) -> None:
    """Make the directories, and put each file in place whole.

    Raises:
        ConfigurationError: a directory or file cannot be made, or a `LocalPath` cannot be written to.
        DiskError: the disk is full.
    """
    files: dict[str, Mapping[str, object]] = {
        "hyperparameters.json": job.hyperparameters,
        "inputdataconfig.json": input_data_config(job, cluster),
        "resourceconfig.json": resource_config(cluster),
    }
    try:
        for directory in (paths.data, paths.model, paths.code, paths.output_data, paths.checkpoints):
            os.close(open_directory(directory, paths.base))
        with directory_at(paths.config, paths.base) as config_fd:
            for name, content in files.items():
                write_file(config_fd, name, [json.dumps(content, separators=(",", ":")).encode()])
    except OSError as error:
        raise _cannot_make(paths.config / (error.filename or ""), error) from error
    for synced in job.synced:
        _make_synced(paths.of(synced.local_path), paths.base)


def _make_synced(path: Path, base: Path) -> None:
    """Make a directory whose files go to S3, unless it lies below `base`, which is ours."""
    if path.is_relative_to(base):
        return
    try:
        with directory_at(path, path):
            if not os.access(path, os.W_OK | os.X_OK):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        message = f"files of the job go to S3 from {str(path)!r}, which cannot be made or written to: {error.strerror}"
        raise _refusal(error, message, "make it writable, or name another directory as LocalPath") from error


def _cannot_make(path: str | Path, error: OSError) -> FastfuseError:
    hint = "run as root, or name a directory of yours with --base-dir"
    if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EEXIST}:
        hint = "remove it, or name another directory with --base-dir"
    return _refusal(error, f"{str(path)!r} cannot be made: {error.strerror}", hint)


def of_another_user() -> ConfigurationError:
    """Return what to raise where the lock of the base directory, or the socket there, is another user's."""
    hint = "share them among runs of one user, or of root, or name another directory with --base-dir"
    return ConfigurationError("the channels are those of another user", hint=hint)


def _refusal(error: OSError, message: str, hint: str) -> FastfuseError:
    """Return what to raise for `error`; `hint` is for one that is not of a full disk."""
    return DiskError(message, hint=_FREE_SPACE) if is_full(error) else ConfigurationError(message, hint=hint)


def write_file(directory_fd: int, name: str, lines: Iterable[Buffer]) -> None:
    """Put a file in place whole, or not at all."""
    hidden = f".{name}.{os.urandom(8).hex()}"
    # The script may be another user's.
    made = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=directory_fd)
    try:
        with os.fdopen(made, "wb") as file:
            os.fchmod(made, 0o644)
            file.writelines(lines)
        os.replace(hidden, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(hidden, dir_fd=directory_fd)
        raise


def claim_base_dir(paths: JobPaths) -> int:
    """Return a descriptor that keeps other runs out until the last process that inherits it closes it.

    Another run would take this one's FIFOs and files for leftovers.

    Raises:
        BaseDirInUseError: another run is there.
        ConfigurationError: the base directory is another user's, or cannot be made or locked.
        DiskError: the disk is full.
    """
    try:
        with directory_at(paths.input, paths.base) as input_fd:
            fd = _open_lock(input_fd)
    except OSError as error:
        if error.errno == errno.EACCES and os.path.lexists(paths.input / _LOCK):
            raise of_another_user() from error
        raise _cannot_make(paths.input / (error.filename or ""), error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise BaseDirInUseError(
            f"another fastfuse run uses {paths.base}",
            hint="wait for its end, or give another --base-dir; processes of one job share it with --share",
        ) from error
    except OSError as error:  # of a file system without locks, such as Lustre that was mounted without -o flock
        os.close(fd)
        raise ConfigurationError(
            f"{paths.base} cannot be locked: {error.strerror}",
            hint="give a --base-dir in a file system with locks, or mount this one with them",
        ) from error
    return fd


_LOCK = ".fastfuse-lock"


def _open_lock(directory_fd: int) -> int:
    """Open the file whose lock is the claim: whoever can read a file or a directory can lock it.

    Raises:
        OSError: it cannot be made, or another user could have it locked who does not own the directory either.
    """
    fd = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=directory_fd)
    found = os.fstat(fd)
    is_ours = found.st_uid in {os.geteuid(), os.fstat(directory_fd).st_uid}
    if not (is_ours and stat.S_ISREG(found.st_mode) and found.st_nlink == 1):
        os.close(fd)
        raise FileExistsError(errno.EEXIST, "it is there, and not a file of yours alone", _LOCK)
    return fd


_MARK = ".fastfuse-run"
_RUNS = "runs"
# A name, and two paths of 4096 characters.
_MOST_MARK_BYTES = 1 << 16


def put_aside(
    paths: JobPaths, name: str, *, keeps: bool, fetches_code: bool = False, synced: Collection[Path] = ()
) -> Path | None:
    """Move what the earlier run left, unless this one `keeps` it, and note that the run `name` begins.

    The code goes, too, if the run `fetches_code`: SageMaker's toolkit would run the earlier run's. `synced` are the
    places of this run's checkpoints and logs; those of the earlier run are known from its note.

    Return where it is now, or None where nothing was moved. The caller has claimed the base directory.

    Raises:
        ConfigurationError: files are there that no run of fastfuse made, or that cannot be moved.
    """
    try:
        with directory_at(paths.base, paths.base) as base_fd:
            moved = None if keeps else _put_aside(paths, base_fd, synced, fetches_code=fetches_code)
        note_run(paths, name, synced)
        return moved
    except OSError as error:
        if is_full(error):
            raise DiskError(f"nothing can be written below {paths.base}: {error.strerror}", hint=_FREE_SPACE) from error
        raise ConfigurationError(
            f"what an earlier run left below {paths.base} cannot be moved: {error.filename}: {error.strerror}",
            hint="move it yourself, begin with it (--keep), or give another --base-dir",
        ) from error


def note_run(paths: JobPaths, name: str, synced: Collection[Path] = ()) -> None:
    """Note in the base directory that the files there are those of the run `name`; `synced` as of `put_aside`.

    Raises:
        OSError: that cannot be written.
    """
    below = [str(path.relative_to(paths.base)) for path in synced if path.is_relative_to(paths.base)]
    with directory_at(paths.base, paths.base) as base_fd:
        write_file(base_fd, _MARK, [json.dumps({"name": name, "synced": below}).encode()])


def _put_aside(paths: JobPaths, base_fd: int, synced: Collection[Path], *, fetches_code: bool) -> Path | None:
    name, earlier = _earlier_run(base_fd)
    for path in synced:
        if not path.is_relative_to(paths.base) and _has_files(path):
            raise ConfigurationError(
                f"{path} has files, and a job begins without any", hint="empty it, or begin with them (--keep)"
            )
    places = [*synced, *(paths.base / below for below in earlier)]
    if fetches_code and name is not None:
        places.append(paths.code)
    leftovers = list(_leftovers(paths, places, has_run=name is not None))
    if not leftovers:
        return None
    if name is None:
        raise ConfigurationError(
            f"{leftovers[0]} has files that no run of fastfuse left there",
            hint="give another --base-dir, or begin with them (--keep)",
        )
    aside = _new_directory(paths.base, name)
    for path in leftovers:
        below = path.relative_to(paths.base)
        to = (aside / below).parent
        with directory_at(path.parent, paths.base) as from_fd, directory_at(to, paths.base) as to_fd:
            os.rename(below.name, below.name, src_dir_fd=from_fd, dst_dir_fd=to_fd)
    return aside


def _leftovers(paths: JobPaths, synced: Iterable[Path], *, has_run: bool) -> Iterator[Path]:
    """Yield the channels, and the other directories, that have files. A mount is somebody's, and stays.

    If a run was here before, a channel with empty folders is left over, too: a download that failed made them.
    """
    try:
        channels = sorted(paths.data.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        channels = []
    own = (paths.model, paths.output, paths.checkpoints)
    # A directory inside another one moves with it.
    others = {path for path in synced if path.is_relative_to(paths.base) and not {path, *path.parents} & {*own}}
    outermost = [path for path in sorted(others) if not {*path.parents} & others]
    for path in (*channels, *own, *outermost):
        is_channel = path.parent == paths.data
        if is_channel and find_mount(path) is not None:
            continue
        if _has_files(path) or (is_channel and has_run and any(path.iterdir())):
            yield path


def _has_files(path: Path) -> bool:
    if os.path.islink(path) or (os.path.exists(path) and not os.path.isdir(path)):  # no error if it is out of reach
        return True
    # A directory is looked into and no further than to its first file; links to directories are files, too.
    for top, folders, files in os.walk(path):
        if files or any(os.path.islink(os.path.join(top, folder)) for folder in folders):
            return True
    return False


def _earlier_run(base_fd: int) -> tuple[str | None, list[str]]:
    """Return the name of the run whose files are there, fit for a directory, and its synced directories below.

    The name is None if there was no run.
    """
    try:
        # Somebody else's FIFO is not waited for, and tells nothing.
        fd = os.open(_MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=base_fd)
    except FileNotFoundError:
        return None, []
    with os.fdopen(fd, "rb") as mark:
        text = mark.read(_MOST_MARK_BYTES)
    try:
        noted = json.loads(text)
        name, synced = str(noted["name"]), [*map(str, noted.get("synced", ()))]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return "earlier", []
    is_name = name.replace("-", "").isalnum() and name.isascii()
    # Somebody else may have written the note: it leads nowhere else.
    below = [path for path in synced if "\0" not in path and {*PurePath(path).parts}.isdisjoint({"/", ".."})]
    return name if is_name else "earlier", [path for path in below if PurePath(path).parts]


def _new_directory(base: Path, name: str) -> Path:
    with directory_at(base / _RUNS, base) as runs_fd:
        chosen, number = name, 1
        while True:
            with suppress(FileExistsError):
                os.mkdir(chosen, dir_fd=runs_fd)
                return base / _RUNS / chosen
            number += 1
            chosen = f"{name}-{number}"
