"""The error tree: one errno or exit code each, and the one table from errors to errnos."""

import errno

import pytest

from fastfuse import errors
from fastfuse.errors import FastfuseError, ReadError, errno_for

EXIT_CODES = {
    "FastfuseError": 1, "ConfigurationError": 2, "AccessError": 3, "SourceError": 4, "EmptySourceError": 4,
    "ServiceError": 1, "MountError": 5, "MissingObjectError": 4, "ForbiddenObjectError": 3,
    "DiskError": 5, "OutputError": 6, "ConditionsUnsupportedError": 1, "WriteConflictError": 1, "RefusedError": 1,
    "UploadGoneError": 1,
}  # fmt: skip
ERRNOS = {
    "ReadError": errno.EIO, "ObjectChangedError": errno.ESTALE, "ObjectDeniedError": errno.EACCES,
    "ObjectArchivedError": errno.EACCES, "UnavailableError": errno.EIO, "DeadlineError": errno.EIO,
    "IntegrityError": errno.EIO, "BadReplyError": errno.EIO,
    "StaleInodeError": errno.ESTALE,
}  # fmt: skip


def tree() -> dict[str, type[FastfuseError]]:
    return {name: kind for name, kind in vars(errors).items() if name.endswith("Error")}


def test_every_error_has_a_row_here() -> None:
    assert tree().keys() == EXIT_CODES.keys() | ERRNOS.keys()
    assert {name for name, kind in tree().items() if issubclass(kind, ReadError)} == ERRNOS.keys()


@pytest.mark.parametrize("name", EXIT_CODES)
def test_what_stops_a_command_has_its_exit_code_l5(name: str) -> None:
    assert tree()[name].exit_code == EXIT_CODES[name]


@pytest.mark.parametrize("name", ERRNOS)
def test_what_fails_a_read_has_its_errno_d5(name: str) -> None:
    kind = tree()[name]
    error = kind("x")
    assert errno_for(error) == ERRNOS[name]


@pytest.mark.parametrize("error", [ValueError("x"), OSError(errno.ENOENT, "x"), errors.ServiceError("x")])
def test_what_nobody_foresaw_is_an_input_output_error_and_never_enoent(error: Exception) -> None:
    assert errno_for(error) == errno.EIO


def test_an_error_is_its_sentence_and_keeps_its_hint_apart() -> None:
    error = errors.MountError("the place is taken", hint="take another")
    assert (str(error), error.hint) == ("the place is taken", "take another")
    assert errors.MountError("x").hint == ""
