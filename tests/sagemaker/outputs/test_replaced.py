"""A training script replaces packages that fastfuse uses: what the job has made is in S3 all the same."""

import sys
from pathlib import Path

from tests.filesystem.waiting import wait_until
from tests.sagemaker.outputs.test_uploads import in_archive, job_of
from tests.sagemaker.running.jobs import running
from tests.servers import ACCESS_KEY, SECRET_KEY, S3Server

# Once the file @GONE is there, no process of the run finds another module, or opens a file of a package, and the keys
# that it has are over.
CHANGE = """
import os, sys
from datetime import datetime, timedelta
from fastfuse.s3 import credentials
class Later(datetime):
    @classmethod
    def now(cls, zone):
        return datetime.now(zone) + timedelta(hours=os.path.exists("@GONE"))
credentials.datetime = Later
class Gone:
    def find_spec(self, name, *_):
        if os.path.exists("@GONE"):
            raise ImportError(f"{name} is gone")
def refuse(event, arguments):
    if event == "open" and "/python3" in str(arguments[0]) and os.path.exists("@GONE"):
        raise FileNotFoundError(2, "gone", arguments[0])
sys.meta_path.insert(0, Gone())
sys.addaudithook(refuse)
os.environ["AWS_CONFIG_FILE"] = "@CONFIG"
del os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
"""
# It gives keys for five minutes of the run's clock, so that botocore asks again, and notes that it was asked: "y" once
# the files are gone. Of the channel and the process that uploads, one may have asked at that very moment.
KEYS = f"""
import json, os, time
is_gone = os.path.exists("@GONE")
open("@CALLS", "a").write("y" if is_gone else "x")
until_s = time.time() + 300 + 3600 * is_gone
until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until_s))
keys = {{"AccessKeyId": "{ACCESS_KEY}", "SecretAccessKey": "{SECRET_KEY}", "SessionToken": "t", "Expiration": until}}
print(json.dumps({{"Version": 1}} | keys))
"""
TRAIN = """
import os, pathlib, signal
open("@GONE", "w").close()
open("@BASE/checkpoints/first", "w").write("1")
epoch = 0
while "y" not in pathlib.Path("@CALLS").read_text():
    assert pathlib.Path(f"@BASE/input/data/stream_{epoch}").read_bytes() == b"data"
    epoch += 1
open(os.environ["SM_MODEL_DIR"] + "/weights", "w").write("w")
print("made", flush=True)
signal.pause()
"""


def test_outputs_are_sent_and_keys_renewed_without_the_files_of_packages(moto_server: S3Server, tmp_path: Path) -> None:
    server, base, prefix = moto_server, tmp_path / "ml", f"gone-{tmp_path.name}/"
    server.put("train/x", b"data")
    places = {"@GONE": tmp_path / "gone", "@CONFIG": tmp_path / "config", "@CALLS": tmp_path / "calls", "@BASE": base}

    def filled(text: str) -> str:
        for name, place in places.items():
            text = text.replace(name, str(place))
        return text

    (tmp_path / "keys.py").write_text(filled(KEYS))
    # Isolated, for the path of the tests leads to no module of the standard library.
    places["@CONFIG"].write_text(f"[default]\ncredential_process = {sys.executable} -I {tmp_path}/keys.py\n")
    config = {"S3Uri": f"s3://{server.bucket}/{prefix}checkpoints"}
    description = job_of(CheckpointConfig=config, OutputDataConfig={"S3OutputPath": f"s3://{server.bucket}/{prefix}"})
    [train] = description["InputDataConfig"]
    description["InputDataConfig"].append({**train, "ChannelName": "stream", "InputMode": "Pipe"})

    def stored(key: str) -> bytes | None:
        found = server.client.list_objects_v2(Bucket=server.bucket, Prefix=prefix + key).get("Contents")
        read: bytes = (
            server.client.get_object(Bucket=server.bucket, Key=found[0]["Key"])["Body"].read() if found else b""
        )
        return read or None

    change, command = filled(CHANGE), filled(TRAIN)
    with running(server.endpoint_url, description, base=base, command=command, change=change, is_fresh=True) as job:
        job.wait_for_output("made")
        wait_until(lambda: stored("checkpoints/first") == b"1", lambda: job.log)
        job.stop()
    archive = stored("a-job/output/model.tar.gz")
    assert archive is not None, job
    assert in_archive(archive) == {"weights": b"w"}
    assert stored("a-job/output/job-record.json") is not None
