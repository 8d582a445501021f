"""``--file-system``: where the file systems of a job are mounted."""

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.description.channel import InputMode, LocalDirectory, TrainingJob
from fastfuse.sagemaker.description.job import channels_job, located
from tests.sagemaker.jobs import CHANNEL, job_of, request, with_field

ID = "fs-0123456789abcdef0"


def described(path: str = "/train", access: str = "ro") -> TrainingJob:
    source = {"FileSystemId": ID, "FileSystemAccessMode": access, "FileSystemType": "FSxLustre", "DirectoryPath": path}
    return job_of(with_field(request(), (*CHANNEL, "DataSource"), {"FileSystemDataSource": source}))


def test_a_file_system_is_where_the_option_says() -> None:
    [channel] = located(described(access="rw"), [f"{ID}=/mnt/a=b", "fs-00000000=/mnt/c", f"{ID}=/mnt/a=b"]).channels
    expected = LocalDirectory(path="/train", file_system=ID, mounted_at="/mnt/a=b", is_writable=True)
    assert channel.source == expected
    assert str(channel.source) == f"{ID}:/train"
    assert channel.input_mode is InputMode.FILE
    assert channel.is_put_in_place


def test_channels_elsewhere_need_no_file_system() -> None:
    job = channels_job(["a=s3://bucket/a", "b=/data/b,mode=Pipe,distribution=sharded", "c=file:///data/c"])
    assert located(job, []) == job
    _, pipe, mounted = job.channels
    assert pipe.source == LocalDirectory(path="/data/b")
    assert (pipe.is_sharded, pipe.is_put_in_place, mounted.is_put_in_place) == (True, False, True)
    assert str(mounted.source) == "file:///data/c"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], f"channel train lies in the file system {ID}, and nothing says where that is mounted"),
        (["fs-00000000=/mnt"], f"channel train lies in the file system {ID}"),
        ([ID], "does not say where a file system is mounted"),
        ([f"{ID}=mnt"], "does not say where a file system is mounted"),
        (["=/mnt"], "does not say where a file system is mounted"),
        ([f"{ID}=/a", f"{ID}=/b"], f"--file-system {ID} is given with /a and with /b"),
    ],
)
def test_an_option_that_helps_nobody_is_refused(options: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        located(described(), options)
    assert message in str(refused.value)
    assert refused.value.hint
