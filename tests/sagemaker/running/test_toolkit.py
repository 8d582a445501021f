"""AWS's own training toolkit, as in its containers: it fetches the script from S3, looks every host up, and runs it."""

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from bench.s3server import LoopbackServer, MemoryObjects
from tests.sagemaker.running.jobs import BUCKET, channel, running

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
