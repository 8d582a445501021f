"""Names of SageMaker's API (botocore, ``sagemaker/2017-07-24/service-2.json``) that say nothing about the data.

They are known so that a description copied whole is taken, and a misspelt name is not taken for one of them.
"""

from enum import StrEnum
from typing import Final

__all__ = [
    "ALGORITHM_FIELDS",
    "RESOURCE_FIELDS",
    "TOP_LEVEL_FIELDS",
    "CompressionType",
    "DataDistribution",
    "RecordWrapper",
]


class CompressionType(StrEnum):
    NONE = "None"
    GZIP = "Gzip"


class RecordWrapper(StrEnum):
    NONE = "None"
    RECORD_IO = "RecordIO"


class DataDistribution(StrEnum):
    REPLICATED = "FullyReplicated"
    SHARDED = "ShardedByS3Key"


# Of CreateTrainingJob and DescribeTrainingJob, and what boto3 adds to every answer.
TOP_LEVEL_FIELDS: Final = frozenset(
    {
        "AutoMLJobArn",
        "BillableTimeInSeconds",
        "BillableTokenCount",
        "CheckpointConfig",
        "CreationTime",
        "DebugHookConfig",
        "DebugRuleConfigurations",
        "DebugRuleEvaluationStatuses",
        "EnableInterContainerTrafficEncryption",
        "EnableManagedSpotTraining",
        "EnableNetworkIsolation",
        "ExperimentConfig",
        "FailureReason",
        "FinalMetricDataList",
        "InfraCheckConfig",
        "LabelingJobArn",
        "LastModifiedTime",
        "MlflowConfig",
        "MlflowDetails",
        "ModelArtifacts",
        "ModelPackageConfig",
        "OutputDataConfig",
        "OutputModelPackageArn",
        "ProfilerConfig",
        "ProfilerRuleConfigurations",
        "ProfilerRuleEvaluationStatuses",
        "ProfilingStatus",
        "ProgressInfo",
        "RemoteDebugConfig",
        "ResponseMetadata",
        "RetryStrategy",
        "RoleArn",
        "SecondaryStatus",
        "SecondaryStatusTransitions",
        "ServerlessJobConfig",
        "SessionChainingConfig",
        "StoppingCondition",
        "Tags",
        "TensorBoardOutputConfig",
        "TrainingEndTime",
        "TrainingJobStatus",
        "TrainingStartTime",
        "TrainingTimeInSeconds",
        "TuningJobArn",
        "VpcConfig",
        "WarmPoolStatus",
    }
)

# Of AlgorithmSpecification.
ALGORITHM_FIELDS: Final = frozenset(
    {
        "AlgorithmName",
        "ContainerArguments",
        "ContainerEntrypoint",
        "EnableSageMakerMetricsTimeSeries",
        "MetricDefinitions",
        "TrainingImage",
        "TrainingImageConfig",
    }
)

# Of ResourceConfig.
RESOURCE_FIELDS: Final = frozenset(
    {
        "InstancePlacementConfig",
        "InstancePreferences",
        "KeepAlivePeriodInSeconds",
        "SelectedInstanceCount",
        "SelectedInstanceType",
        "TrainingPlanArn",
        "VolumeKmsKeyId",
        "VolumeSizeInGB",
    }
)
