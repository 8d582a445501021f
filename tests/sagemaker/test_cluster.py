from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import Channel, Cluster, InputMode, RequestedGroup, TrainingJob
from fastfuse.sagemaker.description.cluster import find_cluster
from tests.sagemaker.jobs import S3, job_of, request, with_field

JOB = TrainingJob(channels=())
_SHARDED = Channel(name="train", input_mode=InputMode.PIPE, source=S3Uri("bucket", ""), is_sharded=True)
GROUPS = (
    RequestedGroup(name="data", instance_type="ml.c5.xlarge", count=2),
    RequestedGroup(name="spare", instance_type="ml.c5.xlarge", count=0),
    RequestedGroup(name="train", instance_type="ml.p3.2xlarge", count=9),
)


def found(environ: dict[str, str], host: str | None = None) -> tuple[str, int]:
    cluster = find_cluster(JOB, environ, host)
    assert list(cluster.hosts) == sorted(cluster.hosts)
    return cluster.current_host, len(cluster.hosts)


@pytest.mark.parametrize(
    ("environ", "current", "count"),
    [
        ({}, "algo-1", 1),
        ({"RANK": "", "WORLD_SIZE": ""}, "algo-1", 1),
        ({"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"}, "algo-2", 2),
        ({"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "RANK": "9", "WORLD_SIZE": "16"}, "algo-2", 2),
        ({"PET_NODE_RANK": "3", "PET_NNODES": "4", "RANK": "3", "WORLD_SIZE": "32"}, "algo-4", 4),
        ({"NODE_RANK": "0", "NNODES": "2"}, "algo-1", 2),
        ({"RANK": "2", "WORLD_SIZE": "3"}, "algo-3", 3),
        ({"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0"}, "algo-1", 3),
        ({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "1"}, "algo-2", 2),
        ({"SLURM_NODEID": "1", "SLURM_NNODES": "4", "SLURM_PROCID": "9", "SLURM_NTASKS": "32"}, "algo-2", 4),
        ({"SLURM_NODEID": "1", "SLURM_NNODES": "4", "SLURM_STEP_NUM_NODES": "2"}, "algo-2", 2),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, "algo-2", 4),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "1"}, "algo-2", 4),
        ({"JOB_COMPLETION_INDEX": "4", "JOB_COMPLETIONS": "5"}, "algo-5", 5),
        ({"JOB_COMPLETION_INDEX": "4", "NNODES": "5"}, "algo-5", 5),
        ({"JOB_COMPLETION_INDEX": "4", "RANK": "1", "WORLD_SIZE": "2"}, "algo-2", 2),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "algo-2", 2),
        ({"WORLD_SIZE": "1"}, "algo-1", 1),
    ],
)
def test_a_launchers_variables_tell_which_host_this_is(environ: dict[str, str], current: str, count: int) -> None:
    assert found(environ) == (current, count)


@pytest.mark.parametrize(
    ("host", "current", "count"), [("1/1", "algo-1", 1), ("2/3", "algo-2", 3), ("12/12", "algo-12", 12)]
)
def test_the_option_goes_before_every_variable(host: str, current: str, count: int) -> None:
    environ = {"SM_HOSTS": '["x"]', "SM_CURRENT_HOST": "x", "RANK": "7", "WORLD_SIZE": "8"}
    assert found(environ, host) == (current, count)


@pytest.mark.parametrize("host", ["", "1", "0/3", "4/3", "1/0", "-1/3", "1/3/5", "a/b", "1/99999", "١/٣"])
def test_an_option_that_names_no_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--host .* is not I/N with I from 1 to N"):
        find_cluster(JOB, {}, host)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"SM_HOSTS": '["a"]'}, "SM_CURRENT_HOST is '', which SM_HOSTS does not name"),
        ({"SM_CURRENT_HOST": "a"}, "SM_HOSTS is '', which is not a JSON list"),
        ({"SM_HOSTS": '["a"]', "SM_CURRENT_HOST": "b"}, "SM_CURRENT_HOST is 'b', which SM_HOSTS does not name"),
        ({"SM_HOSTS": "a,b", "SM_CURRENT_HOST": "b"}, "SM_HOSTS is 'a,b', which is not a JSON list of names"),
        ({"SM_HOSTS": '["a", 1]', "SM_CURRENT_HOST": "a"}, "which is not a JSON list of names"),
        ({"SM_HOSTS": "[]", "SM_CURRENT_HOST": "a"}, "which is not a JSON list of names"),
        ({"SM_HOSTS": "[" * 100_000, "SM_CURRENT_HOST": "a"}, "which is not a JSON list of names"),
        ({"SM_HOSTS": '["a", "a"]', "SM_CURRENT_HOST": "a"}, "which names a host twice"),
        ({"RANK": "3", "WORLD_SIZE": "3"}, "RANK=3 and WORLD_SIZE=3 contradict each other"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0 and WORLD_SIZE=0 contradict each other"),
        ({"RANK": "-1", "WORLD_SIZE": "3"}, "RANK is '-1', which is not a number"),
        ({"RANK": "1", "WORLD_SIZE": "many"}, "WORLD_SIZE is 'many', which is not a number"),
        ({"PET_NODE_RANK": "0", "PET_NNODES": "1:many"}, "PET_NNODES is '1:many', which is not a number"),
        ({"RANK": "1"}, "RANK is set and WORLD_SIZE is not"),
        ({"NODE_RANK": "0", "WORLD_SIZE": "8"}, "NODE_RANK is set and NNODES is not"),
        ({"WORLD_SIZE": "3"}, "WORLD_SIZE is 3 and RANK is not set"),
        ({"JOB_COMPLETION_INDEX": "0"}, "JOB_COMPLETION_INDEX is set and JOB_COMPLETIONS or NNODES is not"),
        ({"SLURM_NNODES": "2"}, "SLURM_NNODES is 2 and SLURM_NODEID is not set"),
        ({"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, "LOCAL_RANK shows that RANK numbers processes"),
        ({"RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE=3 does not divide"),
        ({"RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE=0 does not divide"),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
            "OMPI_COMM_WORLD_RANK numbers processes, not hosts",
        ),
        (
            {"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4"},
            "SLURM_PROCID numbers processes, not hosts",
        ),
    ],
)
def test_variables_that_contradict_each_other_are_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_cluster(JOB, environ)
    assert message in str(caught.value)
    assert caught.value.hint


def test_each_of_an_elastic_number_of_hosts_has_everything() -> None:
    environ = {"PET_NODE_RANK": "1", "PET_NNODES": "1:4", "RANK": "1", "WORLD_SIZE": "2"}
    assert find_cluster(job_of(request()), environ).hosts == ("algo-1",)
    sharded = with_field(request(), (*S3, "S3DataDistributionType"), "ShardedByS3Key")
    with pytest.raises(ConfigurationError, match="channel train is sharded among a fixed number"):
        find_cluster(job_of(sharded), environ)
    assert find_cluster(job_of(sharded), environ, host="2/2").hosts == ("algo-1", "algo-2")


def test_hosts_of_an_elastic_job_replace_nothing_of_each_other() -> None:
    job = job_of(request())
    assert job.output is not None
    places = set[S3Uri]()
    for machine in ("node-a", "node-b"):
        cluster = find_cluster(job, {"PET_NODE_RANK": "0", "PET_NNODES": "1:4"}, machine=machine)
        assert str(job.output.model(cluster)) == f"s3://bucket/output/a-job/output/model-{machine}.tar.gz"
        places |= {of(cluster) for of in (job.output.model, job.output.output, job.output.record, job.output.etags)}
        assert not cluster.reads_all(job.channels[0])
    assert len(places) == 8
    for environ, host in (
        ({"PET_NNODES": "1:4"}, "1/1"),
        ({"PET_NNODES": "1:1", "PET_NODE_RANK": "0"}, None),
        ({}, None),
    ):
        cluster = find_cluster(job, environ, host)
        assert (job.output.model(cluster).path, cluster.elastic_host) == ("output/a-job/output/model.tar.gz", "")


def test_hosts_are_in_the_order_of_their_names_not_of_their_numbers() -> None:
    assert find_cluster(JOB, {"RANK": "1", "WORLD_SIZE": "11"}).hosts[:4] == ("algo-1", "algo-10", "algo-11", "algo-2")
    environ = {"SM_HOSTS": '["b", "a"]', "SM_CURRENT_HOST": "b", "SM_NETWORK_INTERFACE_NAME": "ib0"}
    cluster = find_cluster(JOB, environ)
    assert (cluster.hosts, cluster.network_interface) == (("a", "b"), "ib0")
    assert (cluster.current_instance_type, cluster.instance_groups[0].hosts) == ("local", cluster.hosts)
    assert find_cluster(JOB, {"SM_NETWORK_INTERFACE_NAME": ""}).network_interface == "eth0"


@pytest.mark.parametrize(("host", "group"), [(1, "data"), (2, "data"), (3, "train"), (10, "train"), (11, "train")])
def test_the_hosts_are_dealt_to_the_groups_by_their_numbers(host: int, group: str) -> None:
    cluster = find_cluster(TrainingJob(channels=(), groups=GROUPS), {}, f"{host}/11")
    assert (cluster.current_host, cluster.current_group) == (f"algo-{host}", group)
    sizes = [(item.name, len(item.hosts)) for item in cluster.instance_groups]
    assert sizes == [("data", 2), ("spare", 0), ("train", 9)]
    assert cluster.instance_groups[2].hosts[:2] == ("algo-10", "algo-11")


@pytest.mark.parametrize(
    ("hosts", "is_sharded", "reads_all"),
    [(1, False, True), (1, True, True), (2, False, False), (2, True, True)],
)
def test_a_host_reads_all_it_gets_unless_others_get_the_same(hosts: int, is_sharded: bool, reads_all: bool) -> None:
    assert find_cluster(JOB, {}, f"1/{hosts}").reads_all(replace(_SHARDED, is_sharded=is_sharded)) == reads_all


def test_the_one_host_of_a_group_reads_all_of_the_groups_channel() -> None:
    groups = [replace(GROUPS[0], count=1), GROUPS[2]]
    cluster = find_cluster(TrainingJob(channels=(), groups=tuple(groups)), {}, "1/10")
    assert cluster.reads_all(replace(_SHARDED, is_sharded=False, instance_group_names=("data",)))


_COUNTS = st.lists(st.integers(0, 4), min_size=1, max_size=4)


def is_refused(counts: list[int], hosts: int | None) -> bool:
    """Return whether a job of instance groups with these counts cannot run on so many hosts; None: nobody says it.

    ``InstanceCount`` is "the number of ML compute instances to use", and of several groups each has its own number
    (https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html). A job of one group runs here on
    as many hosts as a launcher, or the option, names.
    """
    if hosts is None:
        return sum(counts) > 1 or (len(counts) > 1 and sum(counts) == 0)
    return len(counts) > 1 and sum(counts) != hosts


@given(_COUNTS, st.none() | st.integers(1, 8), st.booleans())
def test_hosts_are_refused_as_a_model_says(counts: list[int], hosts: int | None, is_option: bool) -> None:
    groups = tuple(RequestedGroup(name=f"g{at}", instance_type="x", count=count) for at, count in enumerate(counts))
    job = TrainingJob(channels=(), groups=groups)

    def seen_by(host: int) -> Cluster:
        if hosts is None:
            return find_cluster(job, {})
        environ = {} if is_option else {"NODE_RANK": str(host), "NNODES": str(hosts)}
        return find_cluster(job, environ, f"{host + 1}/{hosts}" if is_option else None)

    if is_refused(counts, hosts):
        with pytest.raises(ConfigurationError, match=r"(?i)instance") as caught:
            seen_by(0)
        assert "--host 1/" in caught.value.hint
        return
    clusters = [seen_by(host) for host in range(hosts or 1)]
    assert len({cluster.current_host for cluster in clusters}) == len(clusters)
    assert len({(cluster.hosts, cluster.instance_groups) for cluster in clusters}) == 1
    if len(groups) > 1:
        assert [len(group.hosts) for group in clusters[0].instance_groups] == counts
    # Of a sharded channel of any groups, the hosts of these groups have every object once.
    for name in (*(group.name for group in groups if group.count), None):
        channel = replace(_SHARDED, instance_group_names=() if name is None else (name,))
        shards = [shard for cluster in clusters if cluster.gets(channel) and (shard := cluster.shard(channel))]
        assert sorted(at for shard in shards for at in shard.positions(range(20))) == list(range(20))
