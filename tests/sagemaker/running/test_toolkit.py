"""AWS's own tools: the toolkit of its containers runs a script of S3, and the request of its SDK runs unchanged."""

import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import botocore.loaders
import pytest
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from bench.s3server import LoopbackServer, MemoryObjects
from tests.sagemaker.jobs import request, source
from tests.sagemaker.running.jobs import BUCKET, CHECKSUMS, channel, checksums, running
from tests.servers import S3Server

SCRIPT = b"""
import argparse, json, os, socket
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
names = json.loads(os.environ["SM_HOSTS"])
found = {"epochs": parser.parse_args().epochs, "hosts": [socket.gethostbyname(name) for name in names],
    "data": open(os.path.join(os.environ["SM_CHANNEL_TRAIN"], "x")).read(), "region": os.environ["AWS_REGION"]}
open(os.path.join(os.environ["SM_MODEL_DIR"], "found"), "w").write(json.dumps(found))
"""
TOOLKIT = Path(sys.executable).parent / "train"


def sourcedir() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("train.py")
        member.size = len(SCRIPT)
        archive.addfile(member, io.BytesIO(SCRIPT))
    return packed.getvalue()


@pytest.mark.skipif(not TOOLKIT.exists(), reason="takes sagemaker-training")
@pytest.mark.skipif(
    subprocess.run(["unshare", "--user", "--mount", "true"], check=False).returncode != 0,
    reason="no namespaces may be made here",
)
def test_the_toolkit_runs_a_script_of_s3_on_one_of_two_hosts() -> None:
    objects = {"train/x": b"data", "code/sourcedir.tar.gz": sourcedir()}
    job = {
        "TrainingJobName": "a-job",
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2},
        "InputDataConfig": [channel("train", "FastFile", "train/")],
        "HyperParameters": {
            "sagemaker_program": '"train.py"',
            "sagemaker_submit_directory": f'"s3://{BUCKET}/code/sourcedir.tar.gz"',
            "epochs": "3",
        },
    }
    options = ("--host", "1/2", "--address", "algo-1=127.0.0.1", "--address", "algo-2=127.0.0.2")
    with (
        LoopbackServer({BUCKET: MemoryObjects(objects)}) as server,
        running(server.endpoint_url, job, *options, command=(str(TOOLKIT),), ends_with=0) as started,
    ):
        assert json.loads((started.base / "model/found").read_text()) == {
            "epochs": 3,
            "hosts": ["127.0.0.1", "127.0.0.2"],
            "data": "data",
            "region": "us-east-1",
        }


# What SDK 2.257.1 gave to `create_training_job` in `Estimator.fit`, for an estimator with output, checkpoints,
# hyperparameters, environment, tags and metric definitions, and three channels. The SDK brings a hundred packages.
REQUEST: dict[str, Any] = json.loads(Path(__file__).with_name("estimator_fit.json").read_text())
OBJECTS = {"train/a": b"1,2", "test/b": b"3,4", "eval/c": b"5,6"}


def test_the_estimators_request_runs_unchanged(moto_server: S3Server) -> None:
    for key, data in OBJECTS.items():
        moto_server.put(key, data)
    command = CHECKSUMS + "\nopen(os.environ['SM_MODEL_DIR'] + '/weights', 'w').write(os.environ['SM_HP_RATE'])"
    with running(moto_server.endpoint_url, REQUEST, command=command, ends_with=0) as job:
        assert checksums(job).keys() == {"train", "test", "eval"}
        assert moto_server.client.head_object(Bucket=BUCKET, Key="models/fit-2026/output/model.tar.gz")["ContentLength"]
        not_done = re.findall(r"Starting - (\S+): not done here", job.log)
        assert {"RoleArn", "AlgorithmSpecification.TrainingImage", "Tags", "ProfilerConfig.S3OutputPath"} <= {*not_done}


def test_the_service_itself_would_accept_the_jobs_of_the_tests() -> None:
    described = botocore.loaders.Loader().load_service_model("sagemaker", "service-2")
    shape = ServiceModel(described).operation_model("CreateTrainingJob").input_shape
    for job in (REQUEST, request(), request(source("a", ShuffleConfig={"Seed": 1}), source("b", InputMode="Pipe"))):
        report = ParamValidator().validate(job, shape)
        assert not report.has_errors(), report.generate_report()
    assert ParamValidator().validate(request(Unknown=1), shape).has_errors()
