"""What the toolkit's rules make of names and values; that the whole is the toolkit's is in `test_toolkit`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastfuse.s3.base import ConnectionConfig
from fastfuse.sagemaker.description.channel import TrainingJob
from fastfuse.sagemaker.description.cluster import find_cluster
from fastfuse.sagemaker.environment import count_gpus, script_environment, service_environment
from fastfuse.sagemaker.files import JobPaths
from tests.sagemaker.jobs import job_of, request


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
    [
        {"a=b": "1"},
        {"a\0b": "1"},
        {"a": "x\0y"},
        {"a": '"\\ud800"'},
        {f"p{number}": "x" * 2500 for number in range(100)},
    ],
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
        ("printf 'GPU \\377'", 0),
    ],
)
def test_gpus_are_counted_as_nvidia_smi_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, count: int
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert count_gpus() == count


def test_a_machine_without_nvidia_smi_has_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert count_gpus() == 0


def test_the_region_and_the_endpoint_reach_a_script_that_has_none() -> None:
    connection = ConnectionConfig(endpoint_url="http://127.0.0.1:9000", region="eu-west-1")
    assert service_environment({}, connection) == {
        "AWS_REGION": "eu-west-1",
        "S3_ENDPOINT_URL": connection.endpoint_url,
    }
    inherited = {"AWS_REGION": "us-west-2", "S3_ENDPOINT_URL": "http://s3"}
    assert service_environment(inherited, connection) == {}
    assert service_environment({"AWS_DEFAULT_REGION": "eu-north-1"}, ConnectionConfig()) == {"AWS_REGION": "eu-north-1"}
