"""Loads, before processes are forked that list, what each of them would load for its first request.

botocore's S3 model and what its HTTP client imports only when it is used: more than half of the CPU time of a short
listing, which many channels at once would spend on the same few cores.
"""

import importlib
from contextlib import suppress

from botocore.exceptions import BotoCoreError

from fastfuse.store.base import ConnectionConfig
from fastfuse.store.session import S3Session

__all__ = ["preload_lister"]

# What httpx2 and anyio import by name or in functions.
_MODULES = ("anyio._backends._trio", "encodings.idna", "httpcore2", "truststore")
_DATA = ("endpoints", "partitions", "sdk-default-configuration", "_retry")
_MODELS = ("service-2", "endpoint-rule-set-1")


def preload_lister(config: ConnectionConfig) -> None:
    """Costs 16 MB and no I/O but on local files; never fails: whoever needs what is not there says so."""
    with suppress(ImportError):
        for name in _MODULES:
            importlib.import_module(name)
    with suppress(BotoCoreError):
        loader = S3Session(config).aws.get_component("data_loader")
        for name in _DATA:
            loader.load_data(name)
        for name in _MODELS:
            loader.load_service_model("s3", name, api_version=None)
