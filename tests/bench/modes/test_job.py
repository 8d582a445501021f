from bench.modes.job import stages_of

LINES = [
    (1.0, "2026-01-01 00:00:00 Starting - Preparing 2 channels: a (FastFile), b (File)\n"),
    (1.25, "2026-01-01 00:00:00 Downloading - Preparing the input data\n"),
    (1.5, "2026-01-01T00:00:00.000Z INFO fastfuse.filesystem.supervisor: listed s3://bucket/: 20 objects channel=a\n"),
    (2.0, "2026-01-01T00:00:00.000Z INFO fastfuse.filesystem.supervisor: listed s3://bucket/: 20 objects channel=b\n"),
    (2.25, "2026-01-01 00:00:00 Downloading - a (FastFile): 20 objects at /opt/ml/input/data/a\n"),
    (3.0, "2026-01-01 00:00:00 Downloading - b: 1 MiB of 2 MiB (50%)\n"),
    (4.0, "2026-01-01 00:00:00 Downloading - b (File): 20 files, 2 MiB in 1.8 s at /opt/ml/input/data/b\n"),
    (4.125, "2026-01-01 00:00:00 Training - Running python\n"),
    (9.0, "2026-01-01 00:00:00 Completed - a (FastFile): 0 B, 0 GET, 1 LIST, $0.000005\n"),
]


def test_a_stage_ends_with_the_line_of_the_last_channel_that_says_so() -> None:
    assert stages_of(LINES) == {
        "imports and options": 1.0,
        "files, guardian, forks": 0.25,
        "index": 0.75,
        "mount, FIFO or download": 2.0,
        "the rest": 0.125,
    }


def test_what_no_line_tells_of_is_left_out_and_belongs_to_the_next_stage() -> None:
    stages = stages_of([line for line in LINES if "listed" not in line[1]])
    assert "index" not in stages
    assert stages["mount, FIFO or download"] == 2.75
