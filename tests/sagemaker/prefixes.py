"""A naive model of the objects that ``S3Prefix`` gives a channel in each mode, and of their paths."""

from collections.abc import Iterable


def matching(keys: Iterable[str], prefix: str) -> list[str]:
    """Return the keys that File and Pipe mode deliver, in the order in which S3 lists them.

    "If you choose ``S3Prefix``, ``S3Uri`` identifies a key name prefix. SageMaker uses all objects that match the
    specified key name prefix for model training."
    (https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html, ``S3DataType``)
    """
    return sorted((key for key in keys if key.startswith(prefix)), key=str.encode)


def in_fast_file_mode(keys: Iterable[str], prefix: str) -> list[str] | None:
    """Return the keys that FastFile mode shows; None where it refuses the prefix.

    "``S3Uri`` prefixes must not correspond to a partial folder name" (developer guide, "Access Training Data"): the
    prefix is a folder, or one object (clause N1).
    """
    folder = prefix if not prefix or prefix.endswith("/") else prefix + "/"
    below, begun = matching(keys, folder), matching(keys, prefix)
    if below or not begun:
        return below
    return [prefix] if prefix in begun else None


def paths_of_key_names(sizes: dict[str, int], prefix: str) -> dict[str, str]:
    """Return the path below the channel's directory and the key of each file, of objects with these sizes.

    What no directory of files can hold is left out (clauses N2 to N4).
    """
    keys = matching(sizes, prefix)
    folder = prefix if not prefix or prefix.endswith("/") else prefix + "/"
    root = folder if all(key.startswith(folder) for key in keys) else prefix[: prefix.rfind("/") + 1]
    files, directories = {}, set()
    for key in keys:
        names = key.removeprefix(root).split("/")
        is_marker = names[-1] == "" and not sizes[key]
        if is_marker:
            names.pop()
        if {"", ".", ".."} & set(names):
            continue
        directories |= {"/".join(names[:depth]) for depth in range(1, len(names))}
        if is_marker:
            directories.add("/".join(names))
        else:
            files["/".join(names)] = key
    return {path: key for path, key in files.items() if path not in directories}
