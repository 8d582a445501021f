"""The environment of a training script: what SageMaker sets, and the ``SM_*`` variables of its training toolkit.

Names, values and spelling are those of sagemaker-training 5.1, with which the tests compare them.
"""

import json
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from fastfuse.s3.base import ConnectionConfig
from fastfuse.sagemaker.description.channel import Cluster, TrainingJob
from fastfuse.sagemaker.files import BASE_DIR, JobPaths, input_data_config, resource_config

# A driver that hangs must not keep the job from starting; a healthy one answers within 2 s for 8 GPUs.
_GPU_PATIENCE_S: Final = 10.0

_PREFIX: Final = "sagemaker_"
# Hyperparameters for the platform only, not for a framework.
_OWN: Final = """
    sagemaker_program sagemaker_submit_directory sagemaker_enable_cloudwatch_metrics sagemaker_region
    sagemaker_container_log_level sagemaker_job_name default_user_module_name _tuning_objective_metric
    sagemaker_s3_output
"""
# Any of these spreads the training over the current instance group.
_DISTRIBUTED: Final = """
    sagemaker_mpi_enabled sagemaker_parameter_server_enabled sagemaker_distributed_dataparallel_enabled
    sagemaker_pytorch_ddp_enabled sagemaker_pytorch_xla_multi_worker_enabled
    sagemaker_multi_worker_mirrored_strategy_enabled sagemaker_torch_distributed_enabled
"""
_INFO: Final = 20  # logging.INFO
# MAX_ARG_STRLEN of Linux, the terminating NUL included: with a longer entry no program can be started.
_MAX_ENTRY_BYTES: Final = 128 << 10

# Any JSON value, or None.
_Values = dict[str, Any]


def script_environment(
    job: TrainingJob, cluster: Cluster, paths: JobPaths, *, cpu_count: int, gpu_count: int
) -> dict[str, str]:
    """Return the variables that the script gets beside those it inherits, with the job's ``Environment``."""
    made = dict(job.environment)
    if job.name:
        made["TRAINING_JOB_NAME"] = job.name
    if job.arn:
        made["TRAINING_JOB_ARN"] = job.arn
    if paths.base != BASE_DIR:
        made["SAGEMAKER_BASE_DIR"] = str(paths.base)
    made["CURRENT_HOST"] = cluster.current_host
    machine = {"num_cpus": cpu_count, "num_gpus": gpu_count, "num_neurons": 0}
    return made | _variables(_toolkit_values(job, cluster, paths, machine))


def service_environment(inherited: Mapping[str, str], connection: ConnectionConfig) -> dict[str, str]:
    """Return the variables that tell a script of the S3 service: SageMaker's region, and its toolkit's endpoint."""
    region = connection.region or inherited.get("AWS_DEFAULT_REGION")
    found = {"AWS_REGION": region, "S3_ENDPOINT_URL": connection.endpoint_url}
    return {name: value for name, value in found.items() if value and name not in inherited}


def count_gpus() -> int:
    """Return how many GPUs nvidia-smi lists; 0 if there is no driver, or none that answers."""
    command = ["nvidia-smi", "--list-gpus"]
    try:
        tool = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return 0
    try:
        shown, _ = tool.communicate(timeout=_GPU_PATIENCE_S)
    except subprocess.TimeoutExpired:
        # Nothing waits for its end: a process that waits for the driver does not die either.
        tool.kill()
        return 0
    return 0 if tool.returncode else sum(line.startswith(b"GPU ") for line in shown.splitlines())


def _toolkit_values(job: TrainingJob, cluster: Cluster, paths: JobPaths, machine: _Values) -> _Values:
    """Return the values that the toolkit makes variables of, by its names."""
    parameters = {name: _from_json(text) for name, text in job.hyperparameters.items()}
    own = _OWN.split()
    platform = {name: value for name, value in parameters.items() if name in own or name.startswith(_PREFIX)}
    hyperparameters = {name: value for name, value in parameters.items() if name not in platform}
    framework = {name: value for name, value in platform.items() if name not in own}
    input_config = input_data_config(job, cluster)
    program = job.environment.get("SAGEMAKER_PROGRAM") or platform.get("sagemaker_program")
    shared: _Values = {
        **_group_values(cluster, framework),
        **machine,
        "current_host": cluster.current_host,
        "current_instance_type": cluster.current_instance_type,
        "framework_module": job.environment.get("SAGEMAKER_TRAINING_MODULE"),
        "hosts": list(cluster.hosts),
        "input_config_dir": str(paths.config),
        "input_data_config": input_config,
        "input_dir": str(paths.input),
        "log_level": platform.get("sagemaker_container_log_level", _INFO),
        "model_dir": str(paths.model),
        "module_dir": str(platform.get("sagemaker_submit_directory", paths.code)),
        # "None" without a program, as the toolkit has it.
        "module_name": str(program).removesuffix(".py"),
        "network_interface_name": cluster.network_interface,
        "output_data_dir": str(paths.output_data),
        "output_dir": str(paths.output),
        "output_intermediate_dir": str(paths.output_intermediate),
        "resource_config": resource_config(cluster),
        "user_entry_point": program,
    }
    places = {name: str(paths.channel(name)) for name in input_config}
    training = shared | _training_values(job, shared, framework)
    return {
        **shared,
        "training_env": training | {"channel_input_dirs": places, "hyperparameters": hyperparameters},
        "hps": hyperparameters,
        "framework_params": framework,
        "channels": sorted(places),
        "user_args": _arguments(hyperparameters),
        **{f"channel_{name}": place for name, place in places.items()},
        **{f"hp_{name}": value for name, value in hyperparameters.items()},
    }


def _group_values(cluster: Cluster, framework: _Values) -> _Values:
    groups = resource_config(cluster)["instance_groups"]
    assert isinstance(groups, list)
    spread = [cluster.current_group] if any(framework.get(name) for name in _DISTRIBUTED.split()) else []
    return {
        "current_instance_group": cluster.current_group,
        "current_instance_group_hosts": next(
            (list(group.hosts) for group in cluster.instance_groups if group.name == cluster.current_group), []
        ),
        "distribution_instance_groups": framework.get("sagemaker_distribution_instance_groups", spread),
        "instance_groups": [group["instance_group_name"] for group in groups],
        "instance_groups_dict": {group["instance_group_name"]: group for group in groups},
        "is_hetero": len(groups) > 1,
    }


def _training_values(job: TrainingJob, shared: _Values, framework: _Values) -> _Values:
    """Return the values that only ``SM_TRAINING_ENV`` has."""
    hosts = [
        host
        for group in shared["instance_groups_dict"].values()
        if group["instance_group_name"] in shared["distribution_instance_groups"]
        for host in group["hosts"]
    ]
    master = (hosts or shared["hosts"])[0]
    model_parallel = job.environment.get("SM_HP_MP_PARAMETERS")
    return {
        "additional_framework_parameters": framework,
        "distribution_hosts": hosts,
        "is_master": shared["current_host"] == master,
        # The toolkit gives the variable itself where it is empty or missing.
        "is_modelparallel_enabled": model_parallel and model_parallel != "{}",
        "is_smddpmprun_installed": False,
        "is_smddprun_installed": False,
        "job_name": job.name or None,
        "master_hostname": master,
        "topology": [],
    }


def _from_json(text: str) -> object:
    """Parse a hyperparameter as the toolkit does: as JSON, or as text where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _arguments(hyperparameters: _Values) -> list[str]:
    """Return ``--name value`` pairs for a script's argument parser, sorted by name."""
    made = []
    for name in sorted(hyperparameters):
        value = hyperparameters[name]
        if isinstance(value, dict):
            text = ",".join(f"{key}={item}" for key, item in sorted(value.items()))
        else:
            text = "" if value is None else str(value)
        made += [f"--{name}" if len(name) > 1 else f"-{name}" if name else "", text]
    return made


def _variables(values: _Values) -> dict[str, str]:
    made = {f"SM_{name.upper()}": _text(value) for name, value in values.items()}
    # SM_HPS also holds those that cannot be set.
    return {name: text for name, text in made.items() if _can_be_set(name, text)}


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def _can_be_set(name: str, text: str) -> bool:
    try:
        entry = f"{name}={text}".encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return "=" not in name and b"\0" not in entry and len(entry) < _MAX_ENTRY_BYTES
