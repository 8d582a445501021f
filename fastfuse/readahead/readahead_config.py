"""What the read engine may use, altogether and per file."""

from dataclasses import dataclass

from fastfuse.errors import ConfigurationError

__all__ = ["PAGE_BYTES", "ReadaheadConfig", "Share"]

# The kernel reads whole pages, so no range is cut finer (the end of a file apart).
PAGE_BYTES = 4096

# What a memory target also has to cover beside the parts. A mount may have 64 MiB more than its target and takes 87 as
# it starts; the rest is for what the S3 client holds of replies and for what the C library keeps (`store.trimmed`).
_CLIENT_OVERHEAD_BYTES = 64 << 20
# The window of whoever is expected to read on: 128 MiB of 1 GiB, which brings 1.1 GB/s where a part takes 113 ms; and
# no more than brings what one reader can take, as one at random pays for it once (HDF5).
_FIRST_WINDOW_DIVISOR = 8
_MAX_FIRST_WINDOW_BYTES = 256 << 20
_KIB = 1 << 10
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadaheadConfig:
    """Sizes and limits of the read engine, for all files together unless said otherwise."""

    # One GET of a reader at full speed. At 20 ms to the first byte and 90 MB/s per connection, 8 MiB is 80 % transfer;
    # AWS advises 8-16 MB per ranged GET, Mountpoint's part is 8 MiB too.
    part_size_bytes: int = 8 * _MIB
    # What a reader that starts at 0 gets first, which it waits for in full: 20 ms + 11 ms at the rates above, so that
    # most small files (images, single samples) take one GET; of a large file it comes in four, side by side.
    first_part_bytes: int = _MIB
    # How far ahead of one reader at most, if it is alone; what it needs is measured (`pace`). At the rates above a
    # connection brings 74 MB/s in parts of 8 MiB, so the 52 parts that it may have on their way carry 3.8 GB/s.
    max_window_bytes: int = 512 * _MIB
    # With it a large file is taken to be read to its end until one was not, and so much is fetched ahead when the first
    # is begun; 0: the window of the first files grows with what is read.
    first_window_bytes: int = 0
    # Every file is read once in each epoch: so those of an unknown order are fetched that nobody has opened yet, and of
    # large ones the first, before anybody has.
    expects_every_file: bool = False
    # Parts held and parts on their way, of all files: one whole window is half of it.
    memory_limit_bytes: int = 1024 * _MIB
    # GETs at once. A mount sets it to the store's connections (`ConnectionConfig.max_connections`): more would only
    # queue there.
    max_parts_in_flight: int = 64

    @classmethod
    def within(
        cls,
        memory_target_bytes: int,
        *,
        part_size_bytes: int,
        max_parts_in_flight: int,
        expects_whole_files: bool = False,
        expects_every_file: bool = False,
    ) -> "ReadaheadConfig":
        """For a process that may have `memory_target_bytes` altogether."""
        first_window_bytes = min(memory_target_bytes // _FIRST_WINDOW_DIVISOR, _MAX_FIRST_WINDOW_BYTES)
        return cls(
            part_size_bytes=part_size_bytes,
            first_part_bytes=min(cls().first_part_bytes, part_size_bytes),
            memory_limit_bytes=max(memory_target_bytes - _CLIENT_OVERHEAD_BYTES, memory_target_bytes // 2),
            first_window_bytes=first_window_bytes if expects_whole_files else 0,
            expects_every_file=expects_every_file,
            max_parts_in_flight=max_parts_in_flight,
        )

    def __post_init__(self) -> None:
        for name in ("part_size_bytes", "first_part_bytes"):
            value = getattr(self, name)
            if value < PAGE_BYTES or value % PAGE_BYTES:
                raise ConfigurationError(
                    f"{name} is {value}; it must be a positive multiple of {PAGE_BYTES}",
                    hint="use a power of two such as 8 MiB",
                )
        if self.first_part_bytes > self.part_size_bytes:
            raise ConfigurationError(
                f"first_part_bytes ({self.first_part_bytes}) is larger than part_size_bytes ({self.part_size_bytes})",
                hint="lower first_part_bytes",
            )
        # One part that a reader waits for must fit beside one that is read ahead.
        if self.memory_limit_bytes < 2 * self.part_size_bytes:
            raise ConfigurationError(
                f"a memory limit of {self.memory_limit_bytes // _KIB} KiB does not hold two parts "
                f"of {self.part_size_bytes // _KIB} KiB",
                hint="raise the memory limit or lower the part size",
            )
        if self.max_window_bytes < 0 or self.max_parts_in_flight < 1:
            raise ConfigurationError(
                f"max_window_bytes ({self.max_window_bytes}) must not be negative and max_parts_in_flight "
                f"({self.max_parts_in_flight}) must be at least 1",
                hint="use 0 bytes of window to read without readahead",
            )


@dataclass(frozen=True, slots=True)
class Share:
    """What one file may have ahead of its readers for now: bytes, and parts on their way at the same time."""

    window_bytes: int
    parts_in_flight: int
