"""Clients for the tests of the loopback server: errors of boto3, and bare HTTP."""

import http.client

from botocore.exceptions import ClientError


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
