"""The service's own description of its API, as botocore ships it."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import botocore

__all__ = ["shapes"]


@cache
def shapes() -> dict[str, Any]:
    """Return the structures of SageMaker's API by name."""
    path = Path(botocore.__file__).parent / "data/sagemaker/2017-07-24/service-2.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))["shapes"]
    return found
