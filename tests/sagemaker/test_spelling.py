import textwrap

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker import spelling
from fastfuse.sagemaker.channel import InputMode, RequestedGroup, TrainingJob
from fastfuse.sagemaker.job import channels_job, parse_toml_job

CHANNEL = '[[channel]]\nname = "a"\nsource = "s3://b/x"\n'


def toml_job(text: str) -> TrainingJob:
    return parse_toml_job(text.encode(), "job.toml")


def toml_refusal(text: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        toml_job(text)
    return caught.value


def test_the_example_in_the_documentation_is_taken() -> None:
    assert spelling.__doc__ is not None
    example = textwrap.dedent(spelling.__doc__.partition("::\n")[2].partition("A channel on")[0])
    lines = [line for line in example.splitlines() if not line.startswith(("instance_type", "instance_count"))]
    job = toml_job("\n".join(lines).replace("train/", "train.manifest"))
    assert job.name == "my-job"
    assert job.hyperparameters == {"epochs": "3"}
    assert job.environment == {"LOG_LEVEL": "debug"}
    assert job.groups == (RequestedGroup(name="workers", instance_type="ml.g5.xlarge", count=2),)
    (channel,) = job.channels
    assert channel.memory_weight == 2.0
    assert channel.instance_group_names == ("workers",)
    assert "two ways" in toml_refusal(example.replace("train/", "train.manifest")).hint


def test_the_mode_of_the_job_is_that_of_channels_without_one() -> None:
    other = CHANNEL.replace('"a"', '"c"')
    job = toml_job(f'mode = "pipe"\n{CHANNEL}{other}mode = "File"')
    assert [channel.input_mode for channel in job.channels] == [InputMode.PIPE, InputMode.FILE]


def test_hyperparameters_that_are_not_text_become_json() -> None:
    job = toml_job(f'[hyperparameters]\na = "x"\nb = 1\nc = 0.5\nd = true\ne = [1, "y"]\nf = {{ g = 1 }}\n{CHANNEL}')
    assert job.hyperparameters == {"a": "x", "b": "1", "c": "0.5", "d": "true", "e": '[1, "y"]', "f": '{"g": 1}'}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "job.toml: channel: is missing"),
        ("channel = []", "job.toml: channel: is missing"),
        ('[channel]\nname = "a"', "job.toml: channel: is not a list of tables"),
        ("channel = [1]", "job.toml: channel: is not a list of tables"),
        ("instance_group = 5", "job.toml: instance_group: is not a list of tables"),
        ("hyperparameters = 5", "job.toml: hyperparameters: is not a table"),
        ("hyperparameters = {a = 2024-01-01}", "job.toml: hyperparameters.a: is nothing that JSON has"),
        ("environment = {a = nan}", "job.toml: environment.a: is nothing that JSON has"),
        (f"{CHANNEL}[environment]\n1a = 5", "job.toml: environment.1a: has characters that"),
        ("chanel = 5", "job.toml: chanel: is not a field of a job file"),
        (f"{CHANNEL}mood = 5", "job.toml: channel[0].mood: is not a field of a job file"),
        (f"{CHANNEL}{CHANNEL}", "job.toml: channel[1].name: 'a' is the name of"),
        ('[[channel]]\nname = "a"', "job.toml: channel[0].source: is missing"),
        (f'{CHANNEL}mode = "quick"', "job.toml: channel[0].mode: 'quick' is not one of file, fastfile, pipe"),
        (f"{CHANNEL}mode = 5", "job.toml: channel[0].mode: is not one of"),
        (f'{CHANNEL}attributes = ["a", 5]', "job.toml: channel[0].attributes[1]: is not text"),
        (f"{CHANNEL}shuffle_seed = 1.5", "job.toml: channel[0].shuffle_seed: is not a whole number"),
        (f"{CHANNEL}shuffle-seed = {2**63}", "job.toml: channel[0].shuffle_seed: is out of the range"),
        (f"{CHANNEL}memory_weight = 0", "job.toml: channel[0]: memory_weight: is not a number above 0"),
        (f"{CHANNEL}memory_weight = nan", "job.toml: channel[0]: memory_weight: is not a number above 0"),
        (f"{CHANNEL}memory_weight = true", "job.toml: channel[0]: memory_weight: is not a number above 0"),
        (f"{CHANNEL}memory_weight = 1001", "job.toml: channel[0]: memory_weight: is not a number above 0"),
        (f"{CHANNEL}[[instance_group]]\nname = 'g'", "job.toml: instance_group[0].type: is missing"),
        (f"instance_count = -1\n{CHANNEL}", "job.toml: instance_count: is out of the range"),
    ],
)  # fmt: skip
def test_a_toml_file_that_is_wrong_is_refused_in_its_own_words(text: str, message: str) -> None:
    assert str(toml_refusal(text)).startswith(message)


def test_a_field_that_is_not_known_is_refused_with_the_one_that_may_be_meant() -> None:
    assert toml_refusal("chanel = 5").hint == "did you mean channel?"
    assert toml_refusal(f"{CHANNEL}mood = 5").hint == "did you mean mode?"


def test_options_of_the_command_line_reach_the_channels() -> None:
    job = channels_job(["a=s3://b/x=y", "b=s3://b,memory-weight=0.5,instance-group=g,instance-group=h"])
    assert [(item.name, item.source.path) for item in job.channels] == [("a", "x=y"), ("b", "")]
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
        ("a=s3://b,compression=gzip", "--channel a: compression: is Gzip, which is for Pipe mode"),
    ],
)
def test_an_option_of_the_command_line_that_is_wrong_is_refused(option: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        channels_job([option])
    assert str(caught.value).startswith(message)
