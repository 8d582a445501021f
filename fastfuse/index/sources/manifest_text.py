"""SageMaker's manifest: a JSON array of keys below a common prefix. Pure.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html::

    [ {"prefix": "s3://bucket/some/prefix/"}, "relative/path/data-1", "relative/path/data-2" ]
"""

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.located import JsonText, Reference, decoded
from fastfuse.index.sources.uri import S3Uri

__all__ = ["read_manifest"]

_FORM = 'a manifest is [{"prefix": "s3://BUCKET/PREFIX/"}, "KEY", "KEY", ...]'


def read_manifest(data: bytes, name: str) -> list[Reference]:
    """The objects that the manifest called `name` names, in its order, one named twice twice.

    Each name is the prefix and what follows it, put together as they stand: no ``/`` comes in between.

    Raises:
        ConfigurationError: it is no manifest; with line and column.
    """
    text = JsonText(decoded(data, name), name)
    start = text.after_space(0)
    if not text.text.startswith("[", start):
        text.fail(start, "this is not the beginning of a JSON array", _FORM)
    elements = text.elements(start)
    first = next(elements, None)
    if first is None:
        text.fail(start, "the array has no prefix", _FORM)
    prefix, bucket = _prefix(text, first[0])
    found = []
    for at, value in elements:
        if not isinstance(value, str):
            text.fail(at, "this is not a string", "behind the prefix, every element is the rest of a key")
        found.append(text.reference(at, prefix + value, bucket))
    return found


def _prefix(text: JsonText, at: int) -> tuple[str, str]:
    """The prefix in the object at `at`, and its bucket."""
    members = list(text.members(at, is_all=False)) if text.text.startswith("{", at) else []
    if [member.name for member in members] != ["prefix"]:
        text.fail(at, "the first element is not an object with a prefix and nothing else", _FORM)
    prefix, at = members[0].value, members[0].start
    if not isinstance(prefix, str) or not prefix:
        text.fail(at, "the prefix is not a string, or empty", _FORM)
    try:
        return prefix, S3Uri.parse(prefix).bucket
    except ConfigurationError as error:
        text.fail(at, f"the prefix cannot be used: {error}", error.hint or _FORM)
