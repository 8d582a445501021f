"""Many channels: how long until all can be read, and what the whole job holds while all are."""

import threading
from collections.abc import Iterator

from bench import machine
from bench.modes.figures import ChannelFigures
from bench.modes.job import channel, is_script, run_job
from bench.processes import process_tree, pss_bytes
from bench.s3server.synthetic import SyntheticObjects
from bench.server import PROFILES, Server

_MIB = 1 << 20
# The least that one channel works with.
_CHANNEL_BYTES = 128 * _MIB
_FOLDER_FILES = 1000
# More than the channel may hold.
_LARGE_BYTES = 256 * _MIB
_SAMPLE_EVERY_S = 0.25


def measure_channels(count: int, profile: str, runs: int) -> Iterator[ChannelFigures]:
    """One channel and `count` of them in turns until they are ready; then `count` that are read at once."""
    source = f"count={count * _FOLDER_FILES},size=39000,layout=dirs,dirs={count}"
    with Server(source, profile=PROFILES[profile]) as server:
        for _ in range(runs):
            for number in (1, count):
                machine.drop_caches()
                yield _until_ready(server, number, count)
    with Server(f"count={count},size={_LARGE_BYTES},layout=dirs,dirs={count}", profile=PROFILES[profile]) as server:
        machine.drop_caches()
        machine.touch_memory(2 * count * _CHANNEL_BYTES)
        yield _while_read(server, count)


def _channels(server: Server, number: int, folders: int) -> list[dict[str, object]]:
    objects = SyntheticObjects(count=folders, size_bytes=1, layout="dirs", directories=folders)
    prefixes = [objects.key_at(index).decode().partition("/")[0] for index in range(number)]
    return [channel(f"c{index}", server, "FastFile", f"{prefix}/") for index, prefix in enumerate(prefixes)]


def _until_ready(server: Server, number: int, folders: int) -> ChannelFigures:
    target = str(number * _CHANNEL_BYTES)
    with machine.memory_directory(1 << 20) as place:
        run = run_job(server, place, _channels(server, number, folders), "nothing", "--memory-target", target)
    return ChannelFigures(channels=number, ready_s=run.ready_s, cpu_s=run.cpu_s)


def _while_read(server: Server, count: int) -> ChannelFigures:
    target_bytes = count * _CHANNEL_BYTES
    peak_bytes = 0

    def watch(pid: int) -> None:
        def sample() -> None:
            nonlocal peak_bytes
            while not over.wait(_SAMPLE_EVERY_S):
                peak_bytes = max(peak_bytes, _held_bytes(pid))

        threading.Thread(target=sample).start()

    over = threading.Event()
    with machine.memory_directory(1 << 20) as place:
        options = ("--memory-target", str(target_bytes))
        try:
            run = run_job(server, place, _channels(server, count, count), "streams", *options, watch=watch)
        finally:
            over.set()
    return ChannelFigures(
        channels=count,
        ready_s=run.ready_s,
        cpu_s=run.cpu_s,
        memory_target_bytes=target_bytes,
        peak_bytes=peak_bytes,
        mb_per_s=run.mb_per_s,
    )


def _held_bytes(pid: int) -> int:
    """PSS of the job without its command; what processes share counts once."""
    return pss_bytes(pid) - sum(pss_bytes(child) for child in process_tree(pid) if is_script(child))
