"""The environment of a script: what AWS's own training toolkit (sagemaker-training) would make of our files.

The toolkit runs in a process of its own, for it reads the environment when it is imported.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastfuse.s3.base import ConnectionConfig
from fastfuse.sagemaker import environment
from fastfuse.sagemaker.description.channel import TrainingJob
from fastfuse.sagemaker.description.cluster import find_cluster
from fastfuse.sagemaker.environment import count_gpus, script_environment, service_environment
from fastfuse.sagemaker.files import JobPaths, write_job_files
from tests.sagemaker.jobs import S3, job_of, request, source, with_field


def environment_of(job: TrainingJob, base: Path | None = None, host: str | None = None) -> dict[str, str]:
    paths = JobPaths() if base is None else JobPaths(base)
    return script_environment(job, find_cluster(job, {}, host), paths, cpu_count=4, gpu_count=2)


def test_another_base_directory_is_in_every_place_and_told_to_the_toolkit(tmp_path: Path) -> None:
    usual, made = environment_of(job_of(request())), environment_of(job_of(request()), tmp_path)
    assert "SAGEMAKER_BASE_DIR" not in usual
    assert usual["SM_CHANNEL_TRAIN"] == "/opt/ml/input/data/train"
    assert made["SAGEMAKER_BASE_DIR"] == str(tmp_path)
    assert made["SM_CHANNEL_TRAIN"] == str(tmp_path / "input/data/train")
    assert not [name for name, value in made.items() if "/opt/ml" in value]


@pytest.mark.parametrize(
    "parameters",
    [{"a=b": "1"}, {"a\0b": "1"}, {"a": "x\0y"}, {"a": '"\\ud800"'}, {f"p{n}": "x" * 2500 for n in range(100)}],
)
def test_a_program_can_be_started_whatever_the_hyperparameters_are(parameters: dict[str, str]) -> None:
    made = environment_of(job_of(request(HyperParameters=parameters)))
    script = "import json, os; print(os.environ.get('SM_HPS', 'too long'))"
    done = subprocess.run([sys.executable, "-c", script], env=made, capture_output=True, text=True, check=True)
    shown = done.stdout.strip()
    assert shown == "too long" or json.loads(shown).keys() == parameters.keys()


def test_the_jobs_own_variables_are_set_and_the_toolkits_go_before_them() -> None:
    made = environment_of(job_of(request(Environment={"LOG_LEVEL": "debug", "SM_MODEL_DIR": "/elsewhere"})))
    assert made["LOG_LEVEL"] == "debug"
    assert (made["TRAINING_JOB_NAME"], made["CURRENT_HOST"], made["SM_NUM_GPUS"]) == ("a-job", "algo-1", "2")
    assert "TRAINING_JOB_ARN" not in made
    assert made["SM_MODEL_DIR"] == "/opt/ml/model"


@pytest.mark.parametrize(
    ("script", "count"),
    [
        ("echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'; echo 'GPU 1: NVIDIA H100 (UUID: GPU-2)'", 2),
        ("echo 'No devices found'", 0),
        ("echo 'GPU 0: half a driver'; exit 9", 0),
        ("printf 'GPU \\377'", 1),
        (None, 0),
    ],
)
def test_gpus_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, count: int) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    assert count_gpus() == count


def test_a_driver_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[subprocess.Popen[str]] = []

    class Undying(subprocess.Popen[str]):
        """A process in an uninterruptible sleep."""

        def kill(self) -> None:
            killed.append(self)

        def wait(self, timeout: float | None = None) -> int:
            assert timeout is not None
            return super().wait(timeout)

    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nkill -STOP $$\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", Undying)
    monkeypatch.setattr(environment, "_GPU_PATIENCE_S", 0.1)
    assert count_gpus() == 0
    [process] = killed
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)


def test_the_region_and_the_endpoint_reach_a_script_that_has_none() -> None:
    given = ConnectionConfig(endpoint_url="http://127.0.0.1:9000", region="eu-west-1")
    assert service_environment({}, given) == {"AWS_REGION": "eu-west-1", "S3_ENDPOINT_URL": given.endpoint_url}
    inherited = {"AWS_REGION": "us-west-2", "S3_ENDPOINT_URL": "http://s3"}
    assert service_environment(inherited, given) == {}
    assert service_environment({"AWS_DEFAULT_REGION": "eu-north-1"}, ConnectionConfig()) == {"AWS_REGION": "eu-north-1"}


SCRIPT = """
import json
from sagemaker_training import environment
found = environment.Environment()
print(json.dumps({"variables": found.to_env_vars(), "channels": found.channel_input_dirs, "hosts": found.hosts,
    "current_host": found.current_host, "input_dir": found.input_dir, "model_dir": found.model_dir,
    "output_data_dir": found.output_data_dir, "code": environment.code_dir, "master": found.is_master}))
"""

MODES = request(
    source("train", InputMode="FastFile", ContentType="text/csv"),
    source("Eval-1.x", InputMode="Pipe", RecordWrapperType="RecordIO", CompressionType="Gzip"),
    source("all", ShuffleConfig={"Seed": 1}),
)
PARAMETERS = {
    "epochs": "3", "rate": "1e-3", "name": '"n"', "plain": "some text", "none": "null", "on": "true", "x": "",
    "table": '{"b": 1, "a": "\\u00e9"}', "my-list": '[1, "é"]', "sagemaker_program": '"train.py"',
    "sagemaker_submit_directory": '"s3://bucket/code.tar.gz"', "sagemaker_region": '"eu-west-1"',
    "sagemaker_job_name": '"a-job"', "sagemaker_container_log_level": "10",
    "sagemaker_torch_distributed_enabled": "true",
}  # fmt: skip
GROUPS = [
    {"InstanceGroupName": "data", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
    {"InstanceGroupName": "train", "InstanceType": "ml.g5.xlarge", "InstanceCount": 2},
]
GROUPED = with_field(request(source("a"), source("b")), (*S3, "InstanceGroupNames"), ["data"]) | {
    "ResourceConfig": {"InstanceGroups": GROUPS}
}
SPREAD = {"sagemaker_mpi_enabled": "true", "sagemaker_distribution_instance_groups": '["train"]'}

VARIABLES = {"SAGEMAKER_PROGRAM": "main.py", "SAGEMAKER_TRAINING_MODULE": "m:main", "SM_HP_MP_PARAMETERS": '{"a":1}'}
JOBS = [
    (MODES | {"HyperParameters": PARAMETERS}, "10/11"),
    (GROUPED | {"HyperParameters": SPREAD}, "3/3"),
    (request(Environment=VARIABLES, TrainingJobArn="arn:aws:sagemaker:eu-west-1:123456789012:training-job/a"), None),
    ([source()], None),
]


def toolkit(base: Path, job: TrainingJob, host: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """What the toolkit finds below `base`, and the environment that we made for it."""
    paths = JobPaths(base)
    cluster = find_cluster(job, {}, host)
    write_job_files(job, cluster, paths)
    made = script_environment(job, cluster, paths, cpu_count=os.cpu_count() or 1, gpu_count=count_gpus())
    # What the toolkit makes itself, it must not find.
    given = {name: value for name, value in made.items() if not name.startswith("SM_") or name in job.environment}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found, made


@pytest.mark.parametrize(("tree", "host"), JOBS)
def test_the_toolkit_makes_the_same_environment_of_our_files(tmp_path: Path, tree: object, host: str | None) -> None:
    job = job_of(tree)
    found, made = toolkit(tmp_path, job, host)
    ours = {name: value for name, value in made.items() if name.startswith("SM_") and name not in job.environment}
    theirs = found["variables"]
    assert json.loads(ours.pop("SM_TRAINING_ENV")) == json.loads(theirs.pop("SM_TRAINING_ENV"))
    assert ours == theirs
    assert made.get("TRAINING_JOB_ARN", "") == job.arn
