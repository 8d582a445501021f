"""Every field of a job has its row: in the model of the API, in the code and in the docs."""

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import botocore
import pytest

from fastfuse.sagemaker.description.channel import FieldRow, Handling
from fastfuse.sagemaker.description.request import FIELDS, given_fields
from tests.docs.blocks import ROOT
from tests.mounting import run_fastfuse
from tests.sagemaker.jobs import job_of, request, source, with_field


@cache
def shapes() -> dict[str, Any]:
    path = Path(botocore.__file__).parent / "data/sagemaker/2017-07-24/service-2.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))["shapes"]
    return found


def members(shape: str = "CreateTrainingJobRequest", path: str = "") -> Iterator[tuple[str, str]]:
    for name, member in shapes()[shape]["members"].items():
        held = member["shape"]
        if shapes()[held]["type"] == "list":
            held = shapes()[held]["member"]["shape"]
        yield f"{path}{name}", held


def uncovered(shape: str = "CreateTrainingJobRequest", path: str = "") -> Iterator[str]:
    """The members that have no row and no rows for each of their own members."""
    rows = {field.path for field in FIELDS}
    for name, held in members(shape, path):
        has_rows_below = any(row.startswith(f"{name}.") for row in rows)
        if has_rows_below and name not in rows and shapes()[held]["type"] == "structure":
            yield from uncovered(held, f"{name}.")
        elif has_rows_below or name not in rows:
            yield name


def exists(path: str) -> bool:
    shape, top = "CreateTrainingJobRequest", ""
    for name in path.split("."):
        found = dict(members(shape, top)).get(f"{top}{name}")
        if found is None:
            return False
        shape, top = found, f"{top}{name}."
    return True


def test_every_member_of_the_api_has_a_row() -> None:
    assert list(uncovered()) == []


def test_every_row_is_of_a_field_that_the_api_has() -> None:
    # SageMaker gives the ARN in its answers, and the script finds it. Rows that are ahead of the model stand here, too.
    assert [field.path for field in FIELDS if not exists(field.path)] == ["TrainingJobArn"]
    assert len({field.path for field in FIELDS}) == len(FIELDS)


def test_a_row_is_enough_for_a_field_that_the_model_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    new = FieldRow("AddedByAws", Handling.NOT_DONE, "not known here")
    monkeypatch.setattr("fastfuse.sagemaker.description.request.FIELDS", (*FIELDS, new))
    assert new in job_of(request(AddedByAws={"Name": "x"})).fields


@pytest.mark.parametrize("nothing", [None, False, "", [], {}, [{}], {"Subnets": []}])
def test_a_field_that_asks_for_nothing_is_not_told(nothing: object) -> None:
    assert given_fields({"VpcConfig": nothing, "Unknown": None}) == ()


def test_a_field_is_found_in_any_channel() -> None:
    second = with_field(source("second"), ("DataSource", "S3DataSource", "HubAccessConfig"), {"HubContentArn": "arn"})
    told = {field.path for field in job_of(request(source(), second)).fields}
    assert "InputDataConfig.DataSource.S3DataSource.HubAccessConfig" in told
    assert "InputDataConfig.DataSource.S3DataSource.ModelAccessConfig" not in told


def test_fields_of_an_answer_are_told_together() -> None:
    *_, last = job_of(request(BillableTimeInSeconds=3, TrainingJobStatus="Completed", ProfilingStatus=None)).fields
    assert (last.path, last.handling) == ("BillableTimeInSeconds, TrainingJobStatus", Handling.NOT_DONE)


def test_the_places_of_a_job_that_sagemaker_ran_are_not_used() -> None:
    places = {"CheckpointConfig": {"S3Uri": "s3://b/c"}, "TensorBoardOutputConfig": {"S3OutputPath": "s3://b/t"}}
    names = ["OutputDataConfig.S3OutputPath", *places]
    arn = "arn:aws:sagemaker:us-east-1:123456789012:training-job/a-job"
    used = [Handling.DIFFERENTLY, Handling.DONE, Handling.DONE]
    for job, wanted in ((request(**places), used), (request(TrainingJobArn=arn, **places), [Handling.NOT_DONE] * 3)):
        told = {field.path: field.handling for field in job_of(job).fields}
        assert [told[name] for name in names] == wanted


def test_channels_alone_have_fields_too() -> None:
    assert all(field.path.startswith("InputDataConfig.") for field in job_of([source()]).fields)


@pytest.mark.parametrize("words", [("--job", "job.json", "--explain", "--", "touch", "x"), ("--explain", "job.json")])
def test_explain_prints_a_line_for_each_field_and_runs_nothing(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = request(VpcConfig={"Subnets": ["subnet-1"]}, EnableNetworkIsolation=False)
    (tmp_path / "job.json").write_text(json.dumps(job))
    monkeypatch.chdir(tmp_path)
    done = run_fastfuse("run", *words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "VpcConfig: not done here (the network is that of this host)" in lines
    assert "TrainingJobName: done" in lines
    assert len(lines) == len(job_of(job).fields)
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_the_page_of_fields_has_every_row() -> None:
    rows = "".join(f"| `{field.path}` | {field.handling} | {field.note} |\n" for field in FIELDS)
    assert rows in (ROOT / "docs/JOB_FIELDS.md").read_text()
