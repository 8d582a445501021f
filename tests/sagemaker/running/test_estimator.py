"""The request that ``Estimator.fit`` of the SageMaker SDK sends runs unchanged.

``estimator_fit.json`` is what SDK 2.257.1 gave to ``create_training_job`` for an estimator with output, checkpoints,
hyperparameters, environment, tags and metric definitions, and three channels. The SDK brings a hundred packages, so the
tests do not install it.
"""

import json
import re
from pathlib import Path
from typing import Any

import botocore.loaders
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from tests.sagemaker.jobs import request, source
from tests.sagemaker.running.jobs import BUCKET, CHECKSUMS, checksums, running
from tests.servers import S3Server

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
