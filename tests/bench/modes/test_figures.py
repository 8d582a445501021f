"""What is made of figures of modes that nobody measured: verdicts and tables."""

from bench.modes.figures import ChannelFigures, Figures, verdicts

MIB = 1 << 20


def figures(workload: str, candidate: str, **values: float) -> Figures:
    """A GB in ten seconds, of which the first went by before the script."""
    given = {"size_bytes": 10**9, "records": 10, "first_s": 1.5, "total_s": 11.0, "over_s": 12.0, "script_s": 1.0}
    return Figures(workload=workload, candidate=candidate, **(given | {"cpu_s": 1.0} | values))  # type: ignore[arg-type]


def judged(*runs: Figures, channels: tuple[ChannelFigures, ...] = ()) -> dict[str, tuple[float, bool]]:
    return {each.text: (round(each.value, 3), each.is_met) for each in verdicts(runs, channels)}


def test_nothing_measured_is_no_verdict() -> None:
    assert judged() == {}
    assert judged(figures("tfrecords", "raw")) == {}


def test_fastfile_is_held_against_pipe_for_records_and_against_file_for_small_files() -> None:
    runs = [figures("tfrecords", "FastFile", total_s=10.4), figures("tfrecords", "Pipe", total_s=10.0)]
    runs += [figures("small", "FastFile", total_s=12.5, first_s=2.1), figures("small", "File", total_s=10.0)]
    assert judged(*runs) == {
        "tfrecords: FastFile's first record, s": (1.5, True),
        "small: FastFile's first record, s": (2.1, False),
        "tfrecords: FastFile 10.40 s / Pipe 10.00 s": (1.04, True),
        "small: FastFile 12.50 s / File 10.00 s": (1.25, False),
    }


def test_pipe_is_held_against_raw_gets_from_the_start_of_the_script() -> None:
    runs = (figures("small", "raw", script_s=6.0), figures("small", "Pipe", script_s=92.0, total_s=100.0))
    assert judged(*runs) == {"small: Pipe 125 MB/s from the script's start / raw GETs 200 MB/s": (0.625, True)}


def test_many_channels_are_held_against_one_and_against_their_memory() -> None:
    channels = [ChannelFigures(channels=count, ready_s=ready_s, cpu_s=1.0) for count, ready_s in ((1, 1.0), (20, 1.6))]
    read = ChannelFigures(
        channels=20, ready_s=9.0, cpu_s=1.0, memory_target_bytes=2560 * MIB, peak_bytes=2600 * MIB, mb_per_s=500.0
    )
    assert judged(channels=(*channels, read)) == {
        "20 channels ready after 1.60 s / one alone after 1.00 s": (1.6, False),
        "20 channels read at once: the highest PSS of 1 runs, MiB": (2600.0, True),
    }
