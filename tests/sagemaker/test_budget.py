import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.mounting.mount_settings import MINIMUM_MEMORY_BYTES
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import Channel, InputMode, divide_memory, minimum_job_bytes
from fastfuse.sizes import GIB, MIB


def channels(*given_channels: tuple[InputMode, float]) -> list[Channel]:
    return [
        Channel(name=f"c{number}", input_mode=mode, source=S3Uri("bucket", ""), memory_weight=weight)
        for number, (mode, weight) in enumerate(given_channels)
    ]


FAST, FILE, PIPE = InputMode.FAST_FILE, InputMode.FILE, InputMode.PIPE


@pytest.mark.parametrize(
    ("total_bytes", "given_channels", "shares"),
    [
        (4 * GIB, [(FAST, 1), (FAST, 3)], [1 * GIB, 3 * GIB]),
        # A download has what mounts do not need before the command starts, and a stream its part beside both.
        (4 * GIB, [(FAST, 1), (FILE, 1)], [4 * GIB, 4 * GIB]),
        (4 * GIB, [(FAST, 1), (FILE, 1), (FILE, 2), (PIPE, 1)], [2 * GIB, 1 * GIB, 2 * GIB, 1 * GIB]),
        # A light channel gets the minimum at the cost of the others.
        (1 * GIB, [(FAST, 1), (FAST, 100), (FAST, 100)], [128 * MIB, 448 * MIB, 448 * MIB]),
    ],
)
def test_channels_share_by_weight(
    total_bytes: int, given_channels: list[tuple[InputMode, float]], shares: list[int]
) -> None:
    made = divide_memory(total_bytes, channels(*given_channels))
    assert made == {f"c{number}": share for number, share in enumerate(shares)}


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
