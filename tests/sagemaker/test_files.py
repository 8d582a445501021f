"""The directories of a job, and what SageMaker writes there."""

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.processes.children import fork_child, wait_child
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker import files
from fastfuse.sagemaker.description.channel import Channel, Cluster, InputMode, TrainingJob
from fastfuse.sagemaker.description.cluster import find_cluster
from fastfuse.sagemaker.files import JobPaths, claim_base_dir, open_directory, path_of, write_job_files
from tests.descriptors import open_descriptors
from tests.sagemaker.jobs import job_of as described
from tests.sagemaker.jobs import request, source

NOBODY = 65534

REST = {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}


def as_written(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def written(tmp_path: Path, job: TrainingJob, cluster: Cluster | None = None) -> dict[str, bytes]:
    paths = JobPaths(tmp_path)
    write_job_files(job, cluster or find_cluster(job, {}), paths)
    return {path.stem: path.read_bytes() for path in paths.config.iterdir()}


def channel(name: str, mode: InputMode = InputMode.FILE, **fields: object) -> Channel:
    return Channel(name=name, input_mode=mode, source=S3Uri("b", ""), **fields)  # type: ignore[arg-type]


def test_the_guides_examples_are_written_byte_for_byte_with_what_jobs_have_beyond_them(tmp_path: Path) -> None:
    """See "Hyperparameters", "Input Data Configuration" and "Distributed Training Configuration" of the guide.

    https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html
    """
    train = channel("train", content_type="trainingContentType")
    evaluation = channel("evaluation", content_type="evalContentType")
    job = described(request(HyperParameters={"num_round": "128", "eta": "0.001"}))
    cluster = find_cluster(job, {"SM_NETWORK_INTERFACE_NAME": "eth1"}, host="1/3")
    found = written(tmp_path, replace(job, channels=(train, evaluation, channel("validation"))), cluster)
    assert found["hyperparameters"] == b'{"num_round":"128","eta":"0.001"}'
    assert found["inputdataconfig"] == as_written(
        {
            "train": {"ContentType": "trainingContentType", **REST},
            "evaluation": {"ContentType": "evalContentType", **REST},
            "validation": REST,
        }
    )
    # The log of a job has these keys and values in this order.
    assert found["resourceconfig"] == (
        b'{"current_host":"algo-1","current_instance_type":"ml.g5.xlarge","current_group_name":"homogeneousCluster",'
        b'"hosts":["algo-1","algo-2","algo-3"],"instance_groups":[{"instance_group_name":"homogeneousCluster",'
        b'"instance_type":"ml.g5.xlarge","hosts":["algo-1","algo-2","algo-3"]}],"network_interface_name":"eth1"}'
    )


@pytest.mark.parametrize(
    ("item", "entry"),
    [
        (channel("c", InputMode.FAST_FILE), {"TrainingInputMode": "FastFile"}),
        (
            channel("c", InputMode.PIPE, is_sharded=True, wraps_records=True, content_type=""),
            {"ContentType": "", "TrainingInputMode": "Pipe"}
            | {"S3DistributionType": "ShardedByS3Key", "RecordWrapperType": "RecordIO"},
        ),
        (
            channel("c", InputMode.PIPE, is_gzip=True, shuffle_seed=1, content_type="é"),
            {"ContentType": "é", "TrainingInputMode": "Pipe"},
        ),
    ],
)
def test_a_channel_is_written_with_all_its_keys(tmp_path: Path, item: Channel, entry: dict[str, str]) -> None:
    found = written(tmp_path, TrainingJob(channels=(item,)))["inputdataconfig"]
    assert found == as_written({"c": entry | REST | entry})  # keys that differ stay at their places


def test_every_directory_of_a_job_is_there_and_every_file_readable(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        files = written(tmp_path, described(request()))
    finally:
        os.umask(old)
    assert sorted(files) == ["hyperparameters", "inputdataconfig", "resourceconfig"]
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()}
    assert found == {"input", "input/config", "input/data", "model", "code", "output", "output/data", "checkpoints"}
    for path in (tmp_path / "input/config").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_files_of_an_earlier_job_are_replaced_and_never_half_written(tmp_path: Path) -> None:
    written(tmp_path, described(request(source("a"))))
    path = tmp_path / "input/config/inputdataconfig.json"
    with path.open("rb") as file:
        before = file.read()
        written(tmp_path, described(request(source("b"))))
        file.seek(0)
        assert file.read() == before  # another file has taken its name
    assert list(json.loads(path.read_bytes())) == ["b"]
    assert len(list(path.parent.iterdir())) == 3


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    config = tmp_path / "input/config"
    (config / "inputdataconfig.json/x").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"input/config/.*cannot be made: Is a directory"):
        written(tmp_path, described(request()))
    assert {path.name for path in config.iterdir()} == {"hyperparameters.json", "inputdataconfig.json"}


def test_a_base_directory_that_cannot_be_made_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"file.*cannot be made: File exists") as caught:
        written(tmp_path / "file", described(request()))
    assert "--base-dir" in caught.value.hint


def test_a_claim_keeps_out_other_runs_and_nobody_else_can_hold_it(tmp_path: Path) -> None:
    paths = JobPaths(tmp_path)
    with files.directory_at(paths.input, tmp_path) as input_fd:
        fcntl.flock(input_fd, fcntl.LOCK_SH)  # as anybody can
        claimed = claim_base_dir(paths)
    with pytest.raises(files.BaseDirInUseError):
        claim_base_dir(paths)
    assert (paths.input / ".fastfuse-lock").stat().st_mode & 0o777 == 0o600
    os.close(claimed)
    os.close(claim_base_dir(paths))


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_locks = OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=no_locks))
    descriptors = open_descriptors()
    with pytest.raises(ConfigurationError, match=f"{tmp_path} cannot be locked: Function not implemented"):
        claim_base_dir(JobPaths(tmp_path))
    assert open_descriptors() == descriptors


def _of_a_stranger(path: Path) -> None:
    path.touch()
    os.chown(path, 12345, -1)


@pytest.mark.parametrize(
    "put",
    [
        os.mkfifo,
        lambda path: path.hardlink_to(path.with_name("other")),
        lambda path: path.symlink_to("/etc/passwd"),
        pytest.param(_of_a_stranger, marks=pytest.mark.skipif(os.geteuid() != 0, reason="takes root")),
    ],
)
def test_a_lock_that_others_could_hold_is_not_taken(tmp_path: Path, put: Callable[[Path], object]) -> None:
    paths = JobPaths(tmp_path)
    paths.input.mkdir()
    (paths.input / "other").touch()
    put(paths.input / ".fastfuse-lock")
    descriptors = open_descriptors()
    with pytest.raises(ConfigurationError, match=r"input/.fastfuse-lock' cannot be made: ") as caught:
        claim_base_dir(paths)
    assert caught.value.hint.startswith("remove it")
    assert open_descriptors() == descriptors


def test_a_local_path_elsewhere_is_made_or_refused_with_what_to_do(tmp_path: Path) -> None:
    def with_checkpoints(path: Path) -> TrainingJob:
        return described(request(CheckpointConfig={"S3Uri": "s3://b/c/", "LocalPath": str(path)}))

    written(tmp_path / "base", with_checkpoints(tmp_path / "my checkpoints/1"))
    assert (tmp_path / "my checkpoints/1").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"/file/x', which cannot be made or written to") as caught:
        written(tmp_path / "base", with_checkpoints(tmp_path / "file/x"))
    assert "LocalPath" in caught.value.hint
    # One below the base is made by the process that fills it, which follows no link there.
    (tmp_path / "base/link").symlink_to(tmp_path)
    written(tmp_path / "base", with_checkpoints(Path("/opt/ml/link/saved")))
    assert not (tmp_path / "saved").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to be another user")
def test_a_local_path_that_others_own_is_refused() -> None:
    def work() -> None:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        with pytest.raises(ConfigurationError, match="'/usr', which cannot be made or written to: Permission denied"):
            files._make_synced(Path("/usr"), Path("/base"))

    assert wait_child(fork_child(work)) == 0


def test_the_path_of_a_descriptor_leads_to_the_directory_under_any_name(tmp_path: Path) -> None:
    fd = open_directory(tmp_path / "a", tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    (path_of(fd) / "file").write_text("x")
    os.close(fd)
    assert (tmp_path / "b/file").read_text() == "x"


@pytest.mark.parametrize("place", ["input", "input/data", "input/data/train"])
@pytest.mark.parametrize("is_there", [True, False], ids=["to a directory", "to nothing"])
def test_a_link_below_the_base_is_not_followed(tmp_path: Path, place: str, is_there: bool) -> None:
    base, elsewhere = tmp_path / "base", tmp_path / "elsewhere"
    (base / place).parent.mkdir(parents=True)
    if is_there:
        elsewhere.mkdir()
    (base / place).symlink_to(elsewhere)
    descriptors = open_descriptors()
    with pytest.raises(OSError, match=f"{base / place} is a symbolic link, and none below {base} is followed"):
        open_directory(base / "input/data/train", base)
    assert open_descriptors() == descriptors
    assert not is_there or not any(elsewhere.iterdir())


def test_a_base_that_is_a_link_is_followed_because_its_user_named_it(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "base").symlink_to(tmp_path / "disk")
    os.close(open_directory(tmp_path / "base/input", tmp_path / "base"))
    assert (tmp_path / "disk/input").is_dir()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("")
    with pytest.raises(OSError, match="Not a directory") as caught:
        open_directory(tmp_path / "input/data", tmp_path)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOTDIR, str(tmp_path / "input"))
