"""Find which of a job's hosts this one is, from ``--host`` or from the environment that its launcher set.

One fastfuse runs on each host, so hosts count, not processes. The first of these that is set wins:

1. ``--host 2/3``: the second of three.
2. ``SM_HOSTS`` and ``SM_CURRENT_HOST``: in a SageMaker container, or set by a user.
3. Variables that number hosts, of torchrun, Kubeflow, Slurm and Kubernetes' indexed Jobs, or ``NODE_RANK``.
4. Variables that number processes, where each host has one: ``RANK``, and those of Slurm and Open MPI. ``RANK`` is
   divided by ``LOCAL_WORLD_SIZE``, for torchrun numbers a host's processes in a row.
5. None: one host, if the job asks for no more.

torchrun's ``PET_NNODES=1:4`` is no count: each host then has everything, and the script's sampler divides it. What such
a host makes is told from that of others by the name of its machine.

Hosts that each take themselves for the only one would each read everything, and train apart. So a pair with one half
missing is an error, and so is a job of several instances of which nothing says which this is.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NoReturn

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.description.channel import HOMOGENEOUS, Cluster, InstanceGroup, TrainingJob

_HINT: Final = "say which host this is with --host I/N, as in --host 1/1 for the only one"


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two variables: a rank counted from 0, and the first that is set of several counts."""

    rank: str
    counts: tuple[str, ...]
    # Processes on a host: a variable that divides both, or one that must be 1 if it is set.
    divided_by: str = ""
    alone_if: str = ""


_PAIRS: Final = (
    _Pair("GROUP_RANK", ("GROUP_WORLD_SIZE",)),
    _Pair("PET_NODE_RANK", ("PET_NNODES",)),
    _Pair("NODE_RANK", ("NNODES",)),
    _Pair("SLURM_NODEID", ("SLURM_STEP_NUM_NODES", "SLURM_NNODES")),
    _Pair("JOB_COMPLETION_INDEX", ("JOB_COMPLETIONS", "NNODES")),
    _Pair("RANK", ("WORLD_SIZE",), divided_by="LOCAL_WORLD_SIZE"),
    _Pair("SLURM_PROCID", ("SLURM_NTASKS",), alone_if="SLURM_NTASKS_PER_NODE"),
    _Pair("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), alone_if="OMPI_COMM_WORLD_LOCAL_SIZE"),
)


def find_cluster(
    job: TrainingJob, environ: Mapping[str, str], host: str | None = None, *, machine: str = "localhost"
) -> Cluster:
    """Return the hosts of `job` as this host sees them; `host` is the value of ``--host``, `machine` its own name.

    Raises:
        ConfigurationError: values contradict each other or the job's instance groups, or do not say which of several
            hosts this is.
    """
    # An empty variable counts as not set.
    known = {name: value for name, value in environ.items() if value}
    # torchrun may change the number of hosts while the job runs (MIN:MAX), unless both are one number.
    nodes = re.fullmatch(r"(\d{1,6}):(\d{1,6})", known.get("PET_NNODES", ""), re.ASCII)
    if nodes and nodes[1] == nodes[2]:
        known["PET_NNODES"] = nodes[1]
    is_elastic = host is None and nodes is not None and nodes[1] != nodes[2]
    if is_elastic:
        _check_elastic(job, known)
        known = {name: known[name] for name in ("SM_HOSTS", "SM_CURRENT_HOST") if name in known}
    named = _named(host, known)
    if named is None:
        _check_alone(job)
    current, hosts = named or _numbered(0, 1)
    groups = _dealt(job, hosts)
    own = next(group for group in groups if current in group.hosts)
    return Cluster(
        current_host=current,
        hosts=hosts,
        network_interface=environ.get("SM_NETWORK_INTERFACE_NAME") or "eth0",
        current_instance_type=own.instance_type,
        current_group=own.name,
        instance_groups=groups,
        elastic_host=machine if is_elastic and named is None else "",
    )


def _named(host: str | None, environ: Mapping[str, str]) -> tuple[str, tuple[str, ...]] | None:
    """Return this host and all hosts; None if nothing names them."""
    if host is not None:
        match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", host, re.ASCII)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            _refuse(f"--host {host!r} is not I/N with I from 1 to N", "the second of three hosts is --host 2/3")
        return _numbered(int(match[1]) - 1, int(match[2]))
    if "SM_HOSTS" in environ or "SM_CURRENT_HOST" in environ:
        return _sagemaker_hosts(environ)
    counted = [(pair, next((name for name in pair.counts if name in environ), "")) for pair in _PAIRS]
    for pair, count_name in counted:
        if pair.rank in environ and count_name:
            return _numbered(*_ranked(pair, count_name, environ))
    for pair, count_name in counted:
        if pair.rank in environ:
            _refuse(f"{pair.rank} is set and {' or '.join(pair.counts)} is not")
        if count_name and _number(count_name, environ) > 1:
            _refuse(f"{count_name} is {environ[count_name]} and {pair.rank} is not set")
    return None


def _refuse(message: str, hint: str = _HINT) -> NoReturn:
    raise ConfigurationError(message, hint=hint)


def _check_elastic(job: TrainingJob, environ: Mapping[str, str]) -> None:
    """Raise if a channel is sharded, for a shard of a changing number of hosts is no fixed part of the data."""
    sharded = next((channel.name for channel in job.channels if channel.is_sharded), None)
    if sharded is not None and "SM_HOSTS" not in environ:
        _refuse(
            f"PET_NNODES is {environ['PET_NNODES']!r}, and channel {sharded} is sharded among a fixed number of hosts",
            "leave S3DataDistributionType out and let the script's sampler divide the files, or " + _HINT,
        )


def _check_alone(job: TrainingJob) -> None:
    """Raise if the job asks for several instances."""
    wanted = job.instance_count
    if wanted <= 1:
        return
    alone = "" if len(job.groups) > 1 else ", or with --host 1/1 to run the whole job here"
    _refuse(
        f"the job asks for {wanted} instances, and nothing says which of them this host is",
        f"start fastfuse on each of them, with --host 1/{wanted} on the first{alone}; or let a launcher say it: "
        "fastfuse knows the variables of torchrun, Slurm, Kubeflow, Open MPI and Kubernetes, NODE_RANK with NNODES, "
        "and SM_HOSTS with SM_CURRENT_HOST",
    )


def _numbered(rank: int, count: int) -> tuple[str, tuple[str, ...]]:
    """Return the names ``algo-1`` to ``algo-N``, as SageMaker gives them."""
    return f"algo-{rank + 1}", tuple(sorted(f"algo-{number}" for number in range(1, count + 1)))


def _sagemaker_hosts(environ: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    text, current = environ.get("SM_HOSTS", ""), environ.get("SM_CURRENT_HOST", "")
    try:
        hosts = json.loads(text)
    except (ValueError, RecursionError):
        hosts = None
    if not isinstance(hosts, list) or not hosts or not all(isinstance(item, str) and item for item in hosts):
        _refuse(f"SM_HOSTS is {text!r}, which is not a JSON list of names", 'set it as in ["algo-1","algo-2"]')
    if len(set(hosts)) != len(hosts):
        _refuse(f"SM_HOSTS is {text!r}, which names a host twice", "name each host once")
    if current not in hosts:
        _refuse(f"SM_CURRENT_HOST is {current!r}, which SM_HOSTS does not name", "set it to the name of this host")
    return current, tuple(sorted(hosts))


def _ranked(pair: _Pair, count_name: str, environ: Mapping[str, str]) -> tuple[int, int]:
    rank, count = _number(pair.rank, environ), _number(count_name, environ)
    if pair.divided_by and pair.divided_by in environ:
        each = _number(pair.divided_by, environ)
        if each < 1 or count % each:
            _refuse(f"{count_name} is {count}, which {pair.divided_by}={each} does not divide")
        rank, count = rank // each, count // each
    elif pair.divided_by and _number("LOCAL_RANK", {"LOCAL_RANK": "0", **environ}):
        _refuse(
            f"LOCAL_RANK shows that {pair.rank} numbers processes, and nothing tells how many a host has",
            "set NODE_RANK and NNODES, or " + _HINT,
        )
    if pair.alone_if and _number(pair.alone_if, {pair.alone_if: "1", **environ}) != 1:
        _refuse(
            f"{pair.alone_if} is {environ[pair.alone_if]}, and {pair.rank} numbers processes, not hosts",
            "start one fastfuse on each host, or " + _HINT,
        )
    if rank >= count:
        _refuse(
            f"{pair.rank}={environ[pair.rank]} and {count_name}={environ[count_name]} contradict each other",
            "ranks are counted from 0",
        )
    return rank, count


def _number(name: str, environ: Mapping[str, str]) -> int:
    text = environ[name]
    if not re.fullmatch(r"\d{1,6}", text.strip(), re.ASCII):
        _refuse(f"{name} is {text!r}, which is not a number of hosts or of one")
    return int(text)


def _dealt(job: TrainingJob, hosts: Sequence[str]) -> tuple[InstanceGroup, ...]:
    """Give each of the job's groups as many of `hosts`, in order, as it asks for.

    A single group gets all hosts, however many it asks for on SageMaker: who starts them knows how many there are.
    """
    if len(job.groups) <= 1:
        name, kind = (job.groups[0].name, job.groups[0].instance_type) if job.groups else (HOMOGENEOUS, "local")
        return (InstanceGroup(name=name, instance_type=kind, hosts=tuple(hosts)),)
    wanted = job.instance_count
    if wanted != len(hosts):
        _refuse(
            f"the job's instance groups have {wanted} hosts, and there are {len(hosts)}",
            f"start it on {wanted} hosts, with --host 1/{wanted} on the first",
        )
    left = iter(sorted(hosts, key=_natural))
    return tuple(
        InstanceGroup(name=one.name, instance_type=one.instance_type, hosts=tuple(sorted(islice(left, one.count))))
        for one in job.groups
    )


def _natural(host: str) -> tuple[str, int]:
    """Return a key that sorts ``algo-2`` before ``algo-10``."""
    number = re.search(r"\d{1,18}$", host)
    return (host[: number.start()], int(number[0])) if number else (host, 0)
