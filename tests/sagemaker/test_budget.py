import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.mount_settings import MINIMUM_MEMORY_BYTES
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import Channel, InputMode, divide_memory, minimum_job_bytes
from fastfuse.sizes import GIB, MIB


def channels(*given_channels: tuple[InputMode, float]) -> list[Channel]:
    return [
        Channel(name=f"c{number}", input_mode=mode, source=S3Uri("bucket", ""), memory_weight=weight)
        for number, (mode, weight) in enumerate(given_channels)
    ]


FAST, FILE, PIPE = InputMode.FAST_FILE, InputMode.FILE, InputMode.PIPE


def test_mounts_share_by_weight() -> None:
    assert divide_memory(4 * GIB, channels((FAST, 1), (FAST, 3))) == {"c0": 1 * GIB, "c1": 3 * GIB}


def test_a_download_has_what_mounts_do_not_need_before_the_command_starts() -> None:
    assert divide_memory(4 * GIB, channels((FAST, 1), (FILE, 1))) == {"c0": 4 * GIB, "c1": 4 * GIB}


def test_a_stream_has_its_part_beside_downloads_and_beside_mounts() -> None:
    made = divide_memory(4 * GIB, channels((FAST, 1), (FILE, 1), (FILE, 2), (PIPE, 1)))
    assert made == {"c0": 2 * GIB, "c1": 1 * GIB, "c2": 2 * GIB, "c3": 1 * GIB}


def test_a_light_channel_gets_the_minimum_at_the_cost_of_the_others() -> None:
    made = divide_memory(1 * GIB, channels((FAST, 1), (FAST, 100), (FAST, 100)))
    assert made == {"c0": 128 * MIB, "c1": 448 * MIB, "c2": 448 * MIB}


def test_too_little_is_refused_with_what_would_do() -> None:
    with pytest.raises(ConfigurationError, match=r"255 MiB is too little for 2 channels") as caught:
        divide_memory(255 * MIB, channels((FAST, 1), (FAST, 1)))
    assert "--memory-target 256MiB or more" in caught.value.hint


@given(
    st.lists(st.tuples(st.sampled_from(InputMode), st.floats(1e-3, 1e3)), min_size=1, max_size=20),
    st.integers(0, 64 * GIB),
)
def test_channels_that_work_at_the_same_time_never_have_more_than_the_total(
    given_channels: list[tuple[InputMode, float]], extra_bytes: int
) -> None:
    made = channels(*given_channels)
    total_bytes = minimum_job_bytes(made) + extra_bytes
    shares = divide_memory(total_bytes, made)
    assert shares.keys() == {channel.name for channel in made}
    assert min(shares.values()) >= MINIMUM_MEMORY_BYTES
    for idle in (FAST, FILE):
        assert sum(shares[channel.name] for channel in made if channel.input_mode is not idle) <= total_bytes
