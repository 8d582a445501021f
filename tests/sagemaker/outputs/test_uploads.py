"""The outputs of a job are in S3 when it ends, whole, however it ended; or an error says where they still lie."""

import errno
import hashlib
import io
import json
import os
import pty
import re
import resource
import signal
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, aclosing
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from aiobotocore.httpxsession import HttpxSession
from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import EndpointConnectionError

from bench.s3server import (
    ACCESS_DENIED,
    EXPIRED_TOKEN,
    Answer,
    FaultRule,
    LoopbackServer,
    MemoryObjects,
    ServerConfig,
    Stall,
)
from fastfuse.errors import FastfuseError, ServiceError
from fastfuse.filesystem.mounting.mountpoint import find_mount
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.connection import Connection
from fastfuse.s3.failures import Kind
from fastfuse.s3.retries import Retries
from fastfuse.s3.retry_policy import attempts
from fastfuse.s3.routes import Route, Routes
from fastfuse.s3.upload import ObjectWriter
from fastfuse.sagemaker.description.channel import Cluster, OutputConfig
from fastfuse.sagemaker.files import JobPaths
from fastfuse.sagemaker.outputs import sending
from fastfuse.sagemaker.running import delivery
from fastfuse.sagemaker.running.phases import Phases
from tests.filesystem.waiting import wait_until
from tests.sagemaker.jobs import request
from tests.sagemaker.outputs.test_record import record_of
from tests.sagemaker.outputs.test_syncing import put_and_replace
from tests.sagemaker.running.jobs import BUCKET, Job, channel, running
from tests.servers import S3Server

MAKE = """
import os, signal, sys
model, output = os.environ["SM_MODEL_DIR"], os.environ["SM_OUTPUT_DATA_DIR"]
os.mkdir(model + "/code")
open(model + "/weights", "wb").write(bytes(range(256)) * 5000)
open(model + "/code/infer.py", "w").write("pass")
open(output + "/metrics.json", "w").write("{}")
"""
WEIGHTS = bytes(range(256)) * 5000
MADE_AND_WAITING = MAKE + "print('made', flush=True); signal.pause()"


def job_of(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    output = {"S3OutputPath": f"s3://{BUCKET}/models"}
    return request(channel("train", "FastFile", "train/"), **{"OutputDataConfig": output, **fields})


def in_archive(data: bytes) -> dict[str, bytes | None]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        return {name: None if file is None else file.read() for name, file in files.items()}


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    config = ServerConfig(writes="unconditional")
    with LoopbackServer({BUCKET: MemoryObjects({"train/x": b"data"})}, config) as running_server:
        yield running_server


async def test_what_a_job_has_made_waits_for_a_service_that_cannot_be_reached(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, aws_environment: object
) -> None:
    """The search for the bucket's region, and the upload."""
    monkeypatch.setattr("fastfuse.s3.retry_policy.FIRST_PAUSE_S", 0.0)
    many = 3 * attempts(Kind.UNREACHABLE, is_read=False)
    refusals, connect, send = {"region": many, "upload": many}, Routes.connect, HttpxSession.send

    def refuse(what: str) -> bool:
        refusals[what] -= 1
        return refusals[what] >= 0

    async def connect_later(routes: Routes, route: Route) -> Connection:
        if refuse("region"):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "")
        return await connect(routes, route)

    async def send_later(session: HttpxSession, request: AWSPreparedRequest) -> object:
        if refuse("upload"):
            raise EndpointConnectionError(endpoint_url=request.url)
        return await send(session, request)

    monkeypatch.setattr(Routes, "connect", connect_later)
    monkeypatch.setattr(HttpxSession, "send", send_later)
    connection = ConnectionConfig(endpoint_url=moto_server.endpoint_url, force_path_style=True)
    async with aclosing(S3Client(S3Session(connection))) as client, AsyncExitStack() as exits:
        writer = ObjectWriter(client, exits, moto_server.bucket, "waited", outlives_outages=True)
        assert await writer.put(b"model")
    assert max(refusals.values()) < 0


class Stored:
    """The objects of a job in a server that is not ours."""

    def __init__(self, server: S3Server, name: str) -> None:
        self._server = server
        self._prefix = f"models/{name}/output/"
        self.description = job_of(TrainingJobName=name)
        server.client.put_object(Bucket=server.bucket, Key="train/x", Body=b"data")

    def running(self, command: str, *options: str, code: int = 0) -> AbstractContextManager[Job]:
        return running(self._server.endpoint_url, self.description, *options, command=command, ends_with=code)

    def names(self) -> list[str]:
        listed = self._server.client.list_objects_v2(Bucket=self._server.bucket, Prefix=self._prefix)
        return [entry["Key"].removeprefix(self._prefix) for entry in listed.get("Contents", ())]

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._server.client.get_object(Bucket=self._server.bucket, Key=self._prefix + name)
        return found

    def read(self, name: str) -> bytes:
        return bytes(self.get(name)["Body"].read())


def test_model_output_and_record_are_in_s3_when_the_job_ends(moto_server: S3Server) -> None:
    stored = Stored(moto_server, "whole")
    text = MAKE + "os.symlink('weights', model + '/latest'); os.mkfifo(model + '/pipe')"
    with stored.running(text, "--record-etags") as job:
        assert " Uploading - " in job.log
        assert job.log.count("/model/pipe' is neither a file, a directory nor a link, and is left out") == 1
        record = (job.base / "output/job-record.json").read_bytes()
        etags = (job.base / "output/job-etags/train.jsonl").read_bytes()
    assert stored.names() == ["job-etags/train.jsonl", "job-record.json", "model.tar.gz", "output.tar.gz"]
    assert stored.read("job-etags/train.jsonl") == etags
    etag = f'"{hashlib.md5(b"data").hexdigest()}"'
    assert json.loads(etags) == {"Bucket": moto_server.bucket, "Key": "train/x", "Size": 4, "ETag": etag}
    assert in_archive(stored.read("model.tar.gz")) == {
        "code": None,
        "code/infer.py": b"pass",
        "latest": WEIGHTS,
        "weights": WEIGHTS,
    }
    assert in_archive(stored.read("output.tar.gz")) == {"metrics.json": b"{}"}
    assert stored.read("job-record.json") == record
    told = json.loads(record)
    assert told["Artifacts"]["model"] == {
        "S3Uri": f"s3://{moto_server.bucket}/models/whole/output/model.tar.gz",
        "Files": 3,
        "Bytes": 1_280_004,
        "ETag": stored.get("model.tar.gz")["ETag"],
    }
    assert told["PhaseSeconds"]["Uploading"] > 0


def test_uncompressed_outputs_are_encrypted_objects_whatever_links_are_there(moto_server: S3Server) -> None:
    stored = Stored(moto_server, "plain")
    stored.description["OutputDataConfig"] |= {"CompressionType": "NONE", "KmsKeyId": "alias/k"}
    with stored.running(MAKE + "os.symlink('weights', model + '/a-link')", code=6) as job:
        lacks = f"{job.base}/model: 2 of 3 files were sent, not 'a-link': '{job.base}/model/a-link' is a symbolic link"
        assert f"/plain/output/model/, and still lies in {lacks}, and S3 has none\n" in job.log
    assert stored.names() == ["job-record.json", "model/code/infer.py", "model/weights", "output.tar.gz"]
    assert stored.read("model/weights") == WEIGHTS
    weights = stored.get("model/weights")
    assert (weights["ServerSideEncryption"], weights["SSEKMSKeyId"]) == ("aws:kms", "alias/k")


def test_files_that_the_service_refuses_keep_no_other_from_s3(server: LoopbackServer) -> None:
    server.faults.add(FaultRule(action=ACCESS_DENIED, operation="PutObject", key="*/model/c*"))
    config = {"S3OutputPath": f"s3://{BUCKET}/models/", "CompressionType": "NONE"}
    text = MAKE + "os.symlink('weights', model + '/a-link')\nfor name in 'abcdefg': open(model + '/' + name, 'w')"
    with running(server.endpoint_url, job_of(OutputDataConfig=config), command=text) as job:
        assert job.wait() == 6, job.log
        told = "/model: 7 of 10 files were sent, not 'a-link', 'c', 'code/infer.py': The service denies "
        assert told in job.log, job.log
    stored = server.buckets[BUCKET].view()
    sent = [name for name in "abcdefg" if stored.lookup(f"models/a-job/output/model/{name}".encode())]
    assert sent == ["a", "b", "d", "e", "f", "g"]


async def test_a_file_that_another_host_replaces_at_once_is_no_failure(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, aws_environment: object, tmp_path: Path
) -> None:
    """Not of a model whose files all hosts write below one prefix; an archive is of one host."""
    monkeypatch.setattr(ObjectWriter, "put", put_and_replace)
    (tmp_path / "config.json").write_text("ours")
    connection = ConnectionConfig(endpoint_url=moto_server.endpoint_url, force_path_style=True)
    told: dict[str, Any] = {}
    outgoing = [
        sending.Outgoing(name=name, place=tmp_path, uri=S3Uri(moto_server.bucket, f"replaced/{name}"), is_alone=False)
        for name in ("model/", "model.tar.gz")
    ]
    await sending.send_outputs(
        outgoing, tmp_path, S3Session(connection), "", lambda name, **more: told.update({name: more})
    )
    assert told["model/"]["sent"]["Files"] == 1
    assert "/model.tar.gz' is not what was written" in str(told["model.tar.gz"]["error"])


async def test_an_unforeseen_failure_of_the_model_does_not_keep_the_output_from_s3(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, aws_environment: object, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(sending, "write_archive", fail)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"weights")
    outgoing = [
        sending.Outgoing(name="model", place=tmp_path / "model", uri=S3Uri(moto_server.bucket, "unforeseen/model")),
        sending.Outgoing(name="note", place=tmp_path, uri=S3Uri(moto_server.bucket, "unforeseen/note"), data=b"note"),
    ]
    told: dict[str, Any] = {}
    connection = ConnectionConfig(endpoint_url=moto_server.endpoint_url, force_path_style=True)
    await sending.send_outputs(
        outgoing, tmp_path, S3Session(connection), "", lambda name, **more: told.update({name: more})
    )
    assert str(told["model"]["error"]) == "unforeseen: MemoryError()"
    assert told["note"]["sent"]["S3Uri"] == f"s3://{moto_server.bucket}/unforeseen/note"


async def test_what_was_waited_for_in_vain_is_told_for_what_is_sent_next(
    monkeypatch: pytest.MonkeyPatch, aws_environment: object, tmp_path: Path
) -> None:
    """The record is sent by another process than the model."""
    waited_s: list[float] = []

    def note(*_: object, retries: Retries, **__: object) -> None:
        waited_s.append(retries.silent_s)
        raise ServiceError("no answer")

    monkeypatch.setattr(sending, "ObjectWriter", note)
    told: dict[str, Any] = {}
    outgoing = [sending.Outgoing(name="note", place=tmp_path, uri=S3Uri(BUCKET, "note"), data=b"")]
    arguments = (outgoing, tmp_path, S3Session(ConnectionConfig()), "", lambda name, **more: told.update({name: more}))
    for silent_s in (0.0, 250.0):
        await sending.send_outputs(*arguments, silent_s=silent_s)
        assert waited_s.pop() >= silent_s
        assert told[""]["silent_s"] >= silent_s


def test_the_record_does_not_wait_once_more_for_what_the_model_has_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Waiting:
        is_over, artifacts, silent_s = True, MappingProxyType[str, Any]({}), 250.0

        def __init__(self, work: Callable[[object], None], _: object) -> None:
            work(None)

        def failures(self) -> list[FastfuseError]:
            return []

    given_s: list[float] = []

    async def note(*_: object, silent_s: float) -> None:
        given_s.append(silent_s)

    monkeypatch.setattr(delivery, "send_outputs", note)
    monkeypatch.setattr(delivery, "Sender", Waiting)
    job = SimpleNamespace(output=OutputConfig(place=S3Uri(BUCKET, "models/a-job/output/")), synced=())
    cluster = Cluster(current_host="algo-1", hosts=("algo-1",))
    settings: Any = SimpleNamespace(
        job=job, cluster=cluster, paths=JobPaths(tmp_path), connection=ConnectionConfig(), records_etags=False
    )
    sender = delivery.Delivery(settings, Phases(is_json=False), lambda _: False)
    assert sender.deliver("Completed") == []
    sender.deliver_record(b"")
    assert given_s == [0.0, 250.0]


def test_a_record_that_cannot_be_written_here_is_in_s3_alone_if_the_job_made_nothing(moto_server: S3Server) -> None:
    """A full disk keeps the record from being written."""
    stored = Stored(moto_server, "unwritten")
    with stored.running("import os; os.mkdir(os.environ['SM_OUTPUT_DIR'] + '/job-record.json')") as job:
        assert "output/job-record.json cannot be written: Is a directory" in job.log
        assert "/model is empty, and nothing is uploaded" in job.log
    assert stored.names() == ["job-record.json"]
    assert json.loads(stored.read("job-record.json"))["TrainingJobStatus"] == "Completed"


def test_a_job_whose_time_is_over_is_ended_and_keeps_what_it_made(moto_server: S3Server, tmp_path: Path) -> None:
    """Its hour is over once the command has made its model."""
    stored, mark = Stored(moto_server, "long"), tmp_path / "made"
    stored.description["StoppingCondition"] = {"MaxRuntimeInSeconds": 3600}
    change = f"""
import os, time, types
from fastfuse.sagemaker.running import run
run.time = types.SimpleNamespace(
    time=time.time, monotonic=lambda: time.monotonic() + 3600 * os.path.exists({str(mark)!r})
)
"""
    command = MAKE + f"open({str(mark)!r}, 'w').close(); signal.pause()"
    url, code = moto_server.endpoint_url, 128 + signal.SIGTERM
    with running(url, stored.description, command=command, change=change, ends_with=code) as job:
        assert " MaxRuntimeExceeded - after MaxRuntimeInSeconds, which is 3600: " in job.log
        record = record_of(job)
    assert (record["TrainingJobStatus"], record["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
    assert {"job-record.json", "model.tar.gz"} <= {*stored.names()}


def test_a_run_that_fails_does_not_replace_the_model_of_one_that_was_completed(moto_server: S3Server) -> None:
    stored = Stored(moto_server, "twice")
    write = "import os; open(os.environ['SM_MODEL_DIR'] + '/weights', 'w').write('{}'); raise SystemExit({})"
    with stored.running(write.format("good", 0)):
        pass
    with stored.running(write.format("worse", 3), code=3) as job:
        assert in_archive(stored.read("model.tar.gz")) == {"weights": b"good"}
        uri = record_of(job)["Artifacts"]["model"]["S3Uri"]
        assert f"files, 5 B at {uri}\n" in job.log
        name = uri.rpartition("/")[2]
        assert in_archive(stored.read(name)) == {"weights": b"worse"}
        assert re.fullmatch(r"model-\d{8}-\d{6}\.tar\.gz", name)


async def test_an_archive_replaces_that_of_a_run_that_ended_no_better(
    moto_server: S3Server, aws_environment: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = S3Uri(moto_server.bucket, "ranked/model.tar.gz")
    (tmp_path / "model").mkdir()
    connection, kept = ConnectionConfig(endpoint_url=moto_server.endpoint_url, force_path_style=True), ""
    for number, (status, replaces) in enumerate([
        ("Failed", ""), ("Failed", None), ("Stopped", "Failed"), ("Stopped", "Stopped"), ("Failed", None),
        ("Completed", ""), ("Stopped", None), ("Failed", None), ("Completed", ""),
    ]):  # fmt: skip
        (tmp_path / "model/weights").write_text(f"{number}")
        outgoing = [sending.Outgoing(name="model", place=tmp_path / "model", uri=uri, status=status)]
        said: list[str] = []
        caplog.clear()

        def tell(_: str, lines: list[str] = said, **told: Any) -> None:  # noqa: ANN401 - of every kind
            lines.append(told.get("said", ""))

        await sending.send_outputs(outgoing, tmp_path, S3Session(connection), "", tell)
        kept = kept if replaces is None else f"{number}"
        stored = moto_server.client.get_object(Bucket=uri.bucket, Key=uri.path)["Body"].read()
        assert in_archive(stored) == {"weights": kept.encode()}, number
        told = f"{uri} may be of a run that ended better, and stays: this run has the status {status}, and its model"
        assert any(line.startswith(told) for line in caplog.messages) == (replaces is None), number
        is_told = f"{uri} is of a run with the status {replaces}, and is replaced" in said
        assert is_told == bool(replaces), number


async def test_nothing_is_said_of_an_earlier_model_in_an_outage(
    aws_environment: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("_UPLOAD_DEADLINE_S", "_LEAST_DEADLINE_S"):
        monkeypatch.setattr(f"fastfuse.s3.upload.{name}", 0.1)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_text("worse")
    uri = S3Uri("bucket", "model.tar.gz")
    outgoing = [sending.Outgoing(name="model", place=tmp_path / "model", uri=uri, status="Failed")]
    connection = ConnectionConfig(endpoint_url="http://127.0.0.1:1", force_path_style=True)
    told = Mock()
    await sending.send_outputs(outgoing, tmp_path, S3Session(connection), "", told)
    assert "error=ServiceError(" in str(told.call_args_list)  # which one, the time decides
    assert "of a run that ended better" not in caplog.text


def test_the_model_of_a_failed_run_is_sent_though_nobody_says_whether_there_is_an_earlier_one(
    server: LoopbackServer,
) -> None:
    # The answer to a HEAD has no body, and so no code.
    server.faults.add(FaultRule(action=EXPIRED_TOKEN, operation="HeadObject", key="models/*/model.tar.gz"))
    with running(server.endpoint_url, job_of(), command=MAKE + "raise SystemExit(3)", ends_with=3) as job:
        key = record_of(job)["Artifacts"]["model"]["S3Uri"].removeprefix(f"s3://{BUCKET}/")
        assert "/model.tar.gz may be of a run that ended better, and stays" in job.log
    assert server.buckets[BUCKET].view().lookup(key.encode()) is not None


@pytest.mark.parametrize("field", ["OutputDataConfig", "CheckpointConfig"])
def test_a_bucket_that_is_not_there_ends_the_job_before_the_command(moto_server: S3Server, field: str) -> None:
    stored = Stored(moto_server, "nowhere")
    uris = {"OutputDataConfig": "S3OutputPath", "CheckpointConfig": "S3Uri"}
    stored.description[field] = {uris[field]: "s3://absent/place"}
    with stored.running("print('started')", code=4) as job:
        assert job.output == ""
        assert f"fastfuse: error: {field}: There is no bucket 'absent'" in job.log


def test_a_place_that_may_not_be_written_to_ends_the_job_before_the_command(server: LoopbackServer) -> None:
    server.faults.add(FaultRule(action=ACCESS_DENIED, key="models/*"))
    with running(server.endpoint_url, job_of(), command="print('started')", ends_with=3) as job:
        assert job.output == ""
        key = f"s3://{BUCKET}/models/a-job/output/model.tar.gz"
        assert f"fastfuse: error: OutputDataConfig: The service denies access to '{key}'" in job.log
        assert "s3:PutObject to write it; with a key of KMS also kms:Decrypt, and to write it kms:Gen" in job.log


def test_a_key_of_kms_that_cannot_be_used_ends_the_job_before_the_command(server: LoopbackServer) -> None:
    """The key of the bucket, or of the job."""
    code = "KMS.NotFoundException"
    server.faults.add(FaultRule(action=Answer(400, code, ""), key="models/*"))
    with running(server.endpoint_url, job_of(), command="print('started')", ends_with=2) as job:
        assert job.output == ""
        key = f"s3://{BUCKET}/models/a-job/output/model.tar.gz"
        assert f"error: OutputDataConfig: The service cannot write '{key}' with its key of KMS (400 {code})" in job.log
        assert (
            "The key (KmsKeyId of a job, or else the bucket's) must be in the bucket's region, and enabled" in job.log
        )


def test_a_service_that_knows_no_key_of_kms_ends_the_job_before_the_command(server: LoopbackServer) -> None:
    """The server has no uploads in parts, which a job without a key is only told."""
    config = {"S3OutputPath": f"s3://{BUCKET}/models", "KmsKeyId": "alias/k"}
    description = job_of(OutputDataConfig=config)
    with running(server.endpoint_url, description, command="print('started')", ends_with=1) as job:
        assert job.output == ""
        assert "error: OutputDataConfig (KmsKeyId alias/k): The S3 service failed to write " in job.log
    with running(server.endpoint_url, job_of(), command="print('started')", ends_with=0) as job:
        assert "of OutputDataConfig can be written to is not known: The S3 service failed to write " in job.log


def test_no_place_is_checked_where_no_command_makes_anything(server: LoopbackServer) -> None:
    rule = server.faults.add(FaultRule(action=ACCESS_DENIED, key="models/*"))
    with running(server.endpoint_url, job_of()) as job:
        job.wait_for_log("All channels are ready")
        assert server.faults.hits(rule) == 0
        assert job.stop() == 0, job.log


def test_a_denied_upload_is_told_with_the_place_of_the_model(server: LoopbackServer) -> None:
    server.faults.add(FaultRule(action=ACCESS_DENIED, operation="PutObject"))
    with running(server.endpoint_url, job_of(), command=MAKE, ends_with=6) as job:
        message = f"the model is not in S3 at s3://{BUCKET}/models/a-job/output/model.tar.gz, and still lies in "
        assert f"fastfuse: error: {message}{job.base}/model: " in job.log
        assert "the output is not in S3 at " in job.log
        record = record_of(job)
        assert (job.base / "model/weights").stat().st_size == 1_280_000
    assert (record["TrainingJobStatus"], record["ExitCode"], record["Artifacts"]) == ("Failed", 6, {})
    assert message in record["FailureReason"]


def test_a_terminal_that_hangs_up_costs_neither_the_model_nor_the_mounts_their_end(server: LoopbackServer) -> None:
    rule = server.faults.add(FaultRule(action=Stall(0), operation="PutObject"))
    ours, theirs = pty.openpty()
    with running(server.endpoint_url, job_of(), command=MAKE, terminal=theirs) as job:
        os.close(theirs)
        shown = b""
        while b"Uploading model and output" not in shown:
            shown += os.read(ours, 65536)
        wait_until(lambda: server.faults.hits(rule) == 1)
        os.close(ours)
        server.faults.clear()
        assert job.wait() == 0
        assert find_mount(job.data / "train") is None
        assert record_of(job)["TrainingJobStatus"] == "Completed"
    assert server.buckets[BUCKET].view().lookup(b"models/a-job/output/model.tar.gz") is not None


def test_a_killed_upload_is_an_error(server: LoopbackServer) -> None:
    rule = server.faults.add(FaultRule(action=Stall(0), operation="PutObject"))
    with running(server.endpoint_url, job_of(), command=MAKE) as job:
        wait_until(lambda: server.faults.hits(rule) == 1, lambda: job.log)
        os.kill(job.children()[-1], signal.SIGKILL)
        server.faults.clear()
        assert job.wait() == 6, job.log
        assert "the process that uploads was killed by signal 9" in job.log


def test_a_run_that_is_killed_while_it_uploads_says_where_the_model_lies(server: LoopbackServer) -> None:
    rule = server.faults.add(FaultRule(action=Stall(0), operation="PutObject"))
    with running(server.endpoint_url, job_of(), command=MAKE) as job:
        wait_until(lambda: server.faults.hits(rule) == 1, lambda: job.log)
        job.kill()
        assert f"may not be in S3, and lies in {job.base}/model and {job.base}/output/data" in job.log
        assert (job.base / "model/weights").stat().st_size == 1_280_000


@pytest.mark.parametrize("is_over", [True, False])
def test_a_run_at_its_own_limit_uploads_or_says_where_the_model_lies(server: LoopbackServer, is_over: bool) -> None:
    with running(server.endpoint_url, job_of(), command=MADE_AND_WAITING) as job:
        job.wait_for_output("made")
        _, mount, command = job.children()
        limit, hard = resource.prlimit(job.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(job.process.pid, resource.RLIMIT_NOFILE, (3, hard))
        os.kill(mount, signal.SIGSTOP)
        os.kill(command, signal.SIGKILL)
        job.wait_for_log("Taking down train")
        if is_over:
            resource.prlimit(job.process.pid, resource.RLIMIT_NOFILE, (limit, hard))
        os.kill(mount, signal.SIGCONT)
        assert job.wait() == (1 if is_over else 6), job.log
        assert ("fastfuse: error: unforeseen: OSError(24, 'Too many open files')" in job.log) == is_over
        assert (f"the model is not in S3 at s3://{BUCKET}/models/a-job/output/model.tar.gz, and still lies in "
                f"{job.base}/model" in job.log) != is_over  # fmt: skip
        model = server.buckets[BUCKET].view().lookup(b"models/a-job/output/model.tar.gz")
        assert (model is not None) == is_over


def test_a_second_signal_ends_what_is_sent_beside_the_model_and_after_it(server: LoopbackServer) -> None:
    """Of a service that does not answer, each would be waited for, and the record for minutes."""
    server.faults.add(FaultRule(action=Stall(0), operation="PutObject"))
    description = job_of() | {"CheckpointConfig": {"S3Uri": f"s3://{BUCKET}/saved/"}}
    save = "import os; open(os.environ['SM_MODEL_DIR'] + '/../checkpoints/1', 'w').write('1')\n"
    with running(server.endpoint_url, description, command=save + MAKE) as job:
        job.wait_for_log("Uploading model and output")
        job.process.send_signal(signal.SIGTERM)
        job.wait_for_log("The upload goes on; another signal ends it")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 6, job.log
        assert "the upload was told to stop" in job.log
        assert "the checkpoints are not all in S3" in job.log
        assert "the record is not in S3" in job.log
        assert job.log.count("another signal ends it") == 1
