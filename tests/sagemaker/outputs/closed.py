"""A directory that cannot be read, for root too."""

import errno
import os

import pytest


def refuse_to_open(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to open what has this name in some directory, in this process and those that it forks."""
    opening = os.open

    def refuse(path: str, *arguments: int, dir_fd: int | None = None) -> int:
        if path == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opening(path, *arguments, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
