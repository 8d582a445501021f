"""AWS's own training toolkit (sagemaker-training) reads our files and finds the same job, host and places.

It is installed with the development tools: it compiles on every Python that the tests run on, and asks for no version
that anything else here refuses. It runs in a process of its own, for it reads the environment when it is imported.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastfuse.sagemaker.description.channel import TrainingJob
from fastfuse.sagemaker.description.cluster import find_cluster
from fastfuse.sagemaker.environment import count_gpus, script_environment
from fastfuse.sagemaker.files import JobPaths, write_job_files
from tests.sagemaker.jobs import S3, job_of, request, source, with_field

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

JOBS = [
    (request(), None),
    (MODES, "2/3"),
    (request(HyperParameters=PARAMETERS), "10/11"),
    (GROUPED, "1/3"),
    (GROUPED | {"HyperParameters": SPREAD}, "3/3"),
    (request(Environment={"SAGEMAKER_PROGRAM": "main.py", "SAGEMAKER_TRAINING_MODULE": "m:main"}), None),
    (request(Environment={"SM_HP_MP_PARAMETERS": '{"a":1}'}), None),
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
