"""Find the record that a report is of: of a live mount, in a file, or where a job left it; and check it."""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.figures.recorder import HISTORY_NAME
from fastfuse.filesystem.mounting.mountpoint import find_mount
from fastfuse.filesystem.talking.control import RECORD, ask

# A job of a week with twenty channels has less.
_MOST_BYTES: Final = 256 << 20
_HINT: Final = "give a mountpoint, the base directory of 'fastfuse run', or what 'fastfuse report --json' printed"

# Seconds since 1970 that a calendar has, and a number whose differences fit in 64 bits.
_Moment = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
_Number = Annotated[int, Field(ge=0, lt=1 << 62)]


def _utf8(text: object) -> object:
    """Return text without bytes that are not UTF-8, which a path and a key may have: each is written out."""
    return text.encode("utf-8", "backslashreplace").decode() if isinstance(text, str) else text


_Text = Annotated[str, BeforeValidator(_utf8)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=False)


class ChannelRecord(_Part):
    """The samples that `filesystem.figures.recorder` kept of a channel; a mount is one without a name and a mode."""

    name: _Text = ""
    mode: _Text = ""
    source: _Text
    at: list[_Moment] = Field(min_length=1)
    numbers: dict[str, _Number | list[_Number]]


class Job(_Part):
    """The part of a job's record that a report shows."""

    name: _Text | None = Field(default=None, alias="TrainingJobName")
    status: _Text = Field(default="", alias="SecondaryStatus")
    failure: _Text = Field(default="", alias="FailureReason")


class Record(_Part):
    """A record: of a job, or of a mount."""

    version: _Text = ""
    mountpoint: _Text = ""
    state: _Text = ""
    errors: list[tuple[_Moment, _Text]] = []
    phases: list[tuple[_Text, _Moment]] = []
    job: Job | None = None
    channels: list[ChannelRecord]


def record_at(place: Path) -> dict[str, Any]:
    """Return the record of the mount at `place`, in the file `place`, or of the job whose base directory it is.

    Raises:
        ConfigurationError: there is none.
        MountError: the mount does not answer.
    """
    entry = find_mount(place)
    if entry is not None and entry.is_ours:
        told = ask(entry, RECORD)
        return {**told, "channels": [{name: told[name] for name in ("source", "at", "numbers")}]}
    path = place / "output" / HISTORY_NAME if os.path.isdir(place) else place
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigurationError(f"{path} is too large for a record of fastfuse", hint=_HINT)
        found: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigurationError(f"there is no mount and no record at {place}", hint=_HINT) from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}", hint=_HINT) from error
    except (ValueError, RecursionError):
        found = ()
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path} is no record of fastfuse", hint=_HINT)
    return found


def read_record(found: dict[str, Any]) -> Record:
    """Return a record from its JSON.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        record = Record.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"it is no record of fastfuse: {where}: {first['msg']}", hint=_HINT) from None
    if not record.channels:
        raise ConfigurationError("the run had no channel on this host", hint="take the record of a host that had one")
    for channel in record.channels:
        if any(isinstance(column, list) and len(column) != len(channel.at) for column in channel.numbers.values()):
            raise ConfigurationError("it is no record of fastfuse: its columns differ in length", hint=_HINT)
    return record
