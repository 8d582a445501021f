"""The places in S3 of what each host of a job makes. Pure."""

from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import Cluster, OutputConfig

__all__ = ["model_uri", "output_uri", "record_uri"]


def model_uri(config: OutputConfig, cluster: Cluster) -> S3Uri:
    """Return the place of the model: an archive of each host, or one prefix for the files of all hosts."""
    return _uri(config, f"model{_suffix(cluster)}.tar.gz" if config.is_compressed else "model/")


def output_uri(config: OutputConfig, cluster: Cluster) -> S3Uri:
    """Return the place of ``output/data``, which is an archive whatever the model is."""
    return _uri(config, f"output{_suffix(cluster)}.tar.gz")


def record_uri(config: OutputConfig, cluster: Cluster) -> S3Uri:
    """Return the place of the record of the run."""
    return _uri(config, f"job-record{_suffix(cluster)}.json")


def _uri(config: OutputConfig, name: str) -> S3Uri:
    return S3Uri(config.place.bucket, config.place.path + name)


def _suffix(cluster: Cluster) -> str:
    """Return what tells the host's objects from those of the first host: hosts do not replace each other's model."""
    return "" if cluster.current_host == cluster.hosts[0] else f"-{cluster.current_host}"
