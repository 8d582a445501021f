"""The error tree: one errno or exit code each, and the one table from errors to errnos."""

import errno

import pytest

from fastfuse import errors
from fastfuse.errors import errno_for


@pytest.mark.parametrize("error", [ValueError("x"), OSError(errno.ENOENT, "x"), errors.ServiceError("x")])
def test_what_nobody_foresaw_is_an_input_output_error_and_never_enoent(error: Exception) -> None:
    assert errno_for(error) == errno.EIO


def test_an_error_is_its_sentence_and_keeps_its_hint_apart() -> None:
    error = errors.MountError("the place is taken", hint="take another")
    assert (str(error), error.hint) == ("the place is taken", "take another")
    assert errors.MountError("x").hint == ""
