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

from bench.s3server import LoopbackServer, MemoryObjects, ServerConfig
from tests.sagemaker.jobs import request, source
from tests.sagemaker.running.jobs import BUCKET, CHECKSUMS, checksums, running, script

REQUEST: dict[str, Any] = json.loads(Path(__file__).with_name("estimator_fit.json").read_text())
OBJECTS = {"train/a": b"1,2", "test/b": b"3,4", "eval/c": b"5,6"}


def test_the_estimators_request_runs_unchanged() -> None:
    command = script(CHECKSUMS + "\nopen(os.environ['SM_MODEL_DIR'] + '/weights', 'w').write(os.environ['SM_HP_RATE'])")
    with (
        LoopbackServer({BUCKET: MemoryObjects(OBJECTS)}, ServerConfig(writes="unconditional")) as server,
        running(server.endpoint_url, REQUEST, command=command) as job,
    ):
        assert job.wait() == 0, job.log
        assert checksums(job).keys() == {"train", "test", "eval"}
        written = {record.key for record in server.requests if record.method == "PUT" or "uploadId" in record.query}
        assert "models/fit-2026/output/model.tar.gz" in written
        not_done = re.findall(r"Starting - (\S+): not done here", job.log)
        assert {"RoleArn", "AlgorithmSpecification.TrainingImage", "Tags", "ProfilerConfig.S3OutputPath"} <= {*not_done}


def test_the_service_itself_would_accept_the_jobs_of_the_tests() -> None:
    described = botocore.loaders.Loader().load_service_model("sagemaker", "service-2")
    shape = ServiceModel(described).operation_model("CreateTrainingJob").input_shape
    for job in (REQUEST, request(), request(source("a", ShuffleConfig={"Seed": 1}), source("b", InputMode="Pipe"))):
        report = ParamValidator().validate(job, shape)
        assert not report.has_errors(), report.generate_report()
    assert ParamValidator().validate(request(Unknown=1), shape).has_errors()
