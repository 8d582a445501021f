"""Clients for the tests of the loopback server: boto3 without retries, and bare HTTP."""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError


@contextmanager
def boto_client(endpoint_url: str, *, region: str = "us-east-1", **options: Any) -> Iterator[Any]:  # noqa: ANN401
    config = Config(retries={"max_attempts": 0}, s3={"addressing_style": "path"}, connect_timeout=60, read_timeout=60)
    client = boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=region,
        aws_access_key_id="AKIAIOSFODNN7EXAMPLE",
        aws_secret_access_key="example",
        config=config.merge(Config(**options)),
    )
    try:
        yield client
    finally:
        client.close()


def error_of(error: ClientError) -> tuple[int, str]:
    response = error.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


def http_get(
    endpoint_url: str, path: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> tuple[http.client.HTTPResponse, bytes]:
    """One request on a connection of its own; `path` is sent as it is."""
    connection = http.client.HTTPConnection(endpoint_url.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()
