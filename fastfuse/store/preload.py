"""Loads, before processes are forked that list, what each of them would load for its first request.

What the HTTP client imports only when it is used, the certificate authorities, and botocore's S3 model for those who
need it: most of the CPU time of a short listing, which many channels at once would spend on the same few cores. Nothing
here depends on credentials, and none are looked for: each process finds its own.
"""

import importlib
from contextlib import suppress

from botocore.exceptions import BotoCoreError

from fastfuse.errors import FastfuseError
from fastfuse.store.base import ConnectionConfig
from fastfuse.store.direct import is_plain
from fastfuse.store.session import S3Session
from fastfuse.store.transport import tls_context

__all__ = ["preload_lister"]

# What httpx2 and anyio import by name or in functions.
_MODULES = ("anyio._backends._trio", "encodings.idna", "httpcore2", "truststore")
_DATA = ("endpoints", "partitions", "sdk-default-configuration", "_retry")
_MODELS = ("service-2", "endpoint-rule-set-1")


def preload_lister(config: ConnectionConfig, *, is_for_prefixes: bool) -> None:
    """What is listed is prefixes only, or files that name objects, too, each of which is asked for.

    Costs 16 MB if not `is_for_prefixes`, and no I/O but on local files; never fails: whoever needs what is not there
    says so.
    """
    with suppress(ImportError):
        for name in _MODULES:
            importlib.import_module(name)
    with suppress(BotoCoreError, FastfuseError, OSError):
        session = S3Session(config)
        if not is_plain(session):
            tls_context(session.verify)
        if not is_for_prefixes or session.special_endpoint(""):
            _load_models(session)


def _load_models(session: S3Session) -> None:
    loader = session.aws.get_component("data_loader")
    for name in _DATA:
        loader.load_data(name)
    for name in _MODELS:
        loader.load_service_model("s3", name, api_version=None)
