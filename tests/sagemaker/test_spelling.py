import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.description.job import channels_job


def test_options_of_the_command_line_reach_the_channels() -> None:
    job = channels_job(["a=s3://b/x=y", "b=s3://b,memory-weight=0.5,instance-group=g,instance-group=h"])
    assert [(item.name, str(item.source)) for item in job.channels] == [("a", "s3://b/x=y"), ("b", "s3://b/")]
    assert [item.memory_weight for item in job.channels] == [1.0, 0.5]
    assert job.channels[1].instance_group_names == ("g", "h")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("train", "--channel 'train' names no source"),
        ("train=", "--channel train: source: '' is not an S3 URI"),
        ("=s3://b", "--channel : name: is empty"),
        ("a/b=s3://b", "--channel a/b: name: has characters that"),
        ("a=b", "--channel a: source: 'b' is not an S3 URI"),
        ("a=s3://b/x,y", "--channel a: 'y' is not an option of a channel"),
        ("a=s3://b,mod=Pipe", "--channel a: 'mod=Pipe' is not an option of a channel"),
        ("a=s3://b,attributes=x", "--channel a: 'attributes=x' is not an option of a channel"),
        ("a=s3://b,source=s3://c", "--channel a: 'source=s3://c' is not an option of a channel"),
        ("a=s3://b,mode=File,mode=File", "--channel a: mode is given twice"),
        ("a=s3://b,mode=", "--channel a: mode: '' is not one of file, fastfile, pipe"),
        ("a=s3://b,shuffle-seed=x", "--channel a: shuffle_seed: 'x' is not a number"),
        ("a=s3://b,shuffle-seed=1.5", "--channel a: shuffle_seed: is not a whole number"),
        ("a=s3://b,memory-weight=-1", "--channel a: memory_weight: is not a number above 0"),
        ("a=s3://b,memory-weight=0", "--channel a: memory_weight: is not a number above 0"),
        ("a=s3://b,memory-weight=1001", "--channel a: memory_weight: is not a number above 0"),
        ("a=s3://b,memory-weight=nan", "--channel a: memory_weight: 'nan' is not a number"),
        (f"a=s3://b,shuffle-seed={2**63}", "--channel a: shuffle_seed: is out of the range"),
        ("a=s3://b,mode=quick", "--channel a: mode: 'quick' is not one of file, fastfile, pipe"),
        ("a=s3://b,compression=gzip", "--channel a: compression: is Gzip, which is for Pipe mode"),
    ],
)
def test_an_option_of_the_command_line_that_is_wrong_is_refused(option: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        channels_job([option])
    assert str(caught.value).startswith(message)


def test_an_option_that_is_not_known_is_refused_with_the_one_that_may_be_meant() -> None:
    with pytest.raises(ConfigurationError) as caught:
        channels_job(["a=s3://b,mood=Pipe"])
    assert caught.value.hint == "did you mean mode?"


def test_a_name_that_comes_twice_is_refused_in_the_words_of_the_command_line() -> None:
    with pytest.raises(ConfigurationError, match=r"--channel a: name: 'a' is the name of"):
        channels_job(["a=s3://b", "a=s3://c"])
