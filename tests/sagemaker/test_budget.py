import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.mounting.mount_settings import MINIMUM_MEMORY_BYTES
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import Channel, InputMode, divide_memory, minimum_job_bytes
from fastfuse.sizes import GIB, MIB


def channels(*modes: InputMode) -> list[Channel]:
    return [
        Channel(name=f"c{number}", input_mode=mode, source=S3Uri("bucket", "")) for number, mode in enumerate(modes)
    ]


FAST, FILE, PIPE = InputMode.FAST_FILE, InputMode.FILE, InputMode.PIPE


@pytest.mark.parametrize(
    ("modes", "shares"),
    [
        ([FAST, FAST], [2 * GIB, 2 * GIB]),
        # A download has what mounts do not need before the command starts, and a stream its part beside both.
        ([FAST, FILE], [4 * GIB, 4 * GIB]),
        ([FAST, FILE, FILE, FILE, PIPE], [2 * GIB, 1 * GIB, 1 * GIB, 1 * GIB, 1 * GIB]),
    ],
)
def test_channels_share_equally(modes: list[InputMode], shares: list[int]) -> None:
    assert divide_memory(4 * GIB, channels(*modes)) == {f"c{number}": share for number, share in enumerate(shares)}


def test_too_little_is_refused_with_what_would_do() -> None:
    with pytest.raises(ConfigurationError, match=r"255 MiB is too little for 2 channels") as caught:
        divide_memory(255 * MIB, channels(FAST, FAST))
    assert "--memory-target 256MiB or more" in caught.value.hint


@given(
    st.lists(st.sampled_from(InputMode), min_size=1, max_size=20),
    st.integers(0, 64 * GIB),
)
def test_channels_that_work_at_the_same_time_never_have_more_than_the_total(
    modes: list[InputMode], extra_bytes: int
) -> None:
    made = channels(*modes)
    total_bytes = minimum_job_bytes(made) + extra_bytes
    shares = divide_memory(total_bytes, made)
    assert shares.keys() == {channel.name for channel in made}
    assert min(shares.values()) >= MINIMUM_MEMORY_BYTES
    for idle in (FAST, FILE):
        assert sum(shares[channel.name] for channel in made if channel.input_mode is not idle) <= total_bytes
