"""Finds where the objects of a bucket are, and how requests there are signed.

botocore's own endpoint rules decide, from the bucket's name, the region and the settings that botocore's client would
pass to them: a bucket, an access point (ARN or alias), path style or a host name, dual-stack, FIPS, acceleration, or an
endpoint of one's own. The rules take 9 ms to load and 1.4 MB; the model of S3 (100 ms, 16 MB) is not loaded.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote, urlsplit

from botocore.endpoint_provider import EndpointProvider, RuleSetEndpoint
from botocore.exceptions import EndpointProviderError
from botocore.handlers import VALID_BUCKET, VALID_S3_ARN
from botocore.loaders import Loader
from botocore.utils import is_s3_accelerate_url

from fastfuse.errors import ConfigurationError
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import REGION_NAME
from fastfuse.s3.proxies import DEFAULT_PORTS, Proxy, is_host, proxy_for

_RULES = "endpoint-rule-set-1"
# Buckets of S3 Express One Zone and the access points to them.
_DIRECTORY_SUFFIXES = ("--x-s3", "--xa-s3")
# The path of an endpoint's URL may hold these as they are: its author has encoded it.
_SAFE_IN_PATH = "/~%!$&'()*+,;=:@"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of one bucket's objects, and how requests there are signed."""

    scheme: str
    # The host to connect to and to verify, in lower case; an IPv6 address without brackets.
    host: str
    port: int
    # The value of the Host header: an IPv6 address in brackets, the port unless it is the scheme's own.
    host_header: str
    # The path before "/key", URL-encoded as it is sent and signed: "", "/base", "/bucket" or "/base/bucket".
    base_path: str
    region: str
    signing_name: str
    proxy: Proxy | None


def resolve_endpoint(session: S3Session, bucket: str, region: str) -> Endpoint:
    """Return the endpoint of `bucket`, a name, an access point's alias or its ARN, for clients in `region`.

    An ARN's own region is the one to sign for. Does no I/O but on botocore's files, once.

    Raises:
        ConfigurationError: the name, the region, the settings or a proxy are wrong, or do not go together.
    """
    _check_bucket(bucket)
    if not REGION_NAME.fullmatch(region):
        raise ConfigurationError(
            f"{region!r} is not the name of a region.", hint="Correct --region, AWS_DEFAULT_REGION or the profile."
        )
    try:
        found: RuleSetEndpoint = load_rules(session).resolve_endpoint(**_parameters(session, bucket, region))
    except EndpointProviderError as error:
        reason = str(error.kwargs.get("msg", error)).rstrip(".")
        raise ConfigurationError(
            f"The bucket {bucket!r} cannot be used with these settings: {reason}.",
            hint="Check the name, --region, --endpoint-url and the profile's settings for S3 "
            "(s3, use_fips_endpoint, use_dualstack_endpoint).",
        ) from error
    schemes = {scheme["name"]: scheme for scheme in found.properties["authSchemes"]}
    if "sigv4" not in schemes:
        raise ConfigurationError(
            f"{bucket!r} is a multi-region access point, which is not supported: its requests need SigV4A signatures.",
            hint="Name the bucket, or an access point of one region.",
        )
    if session.config.sse_c_key_file and not found.url.startswith("https://"):
        raise ConfigurationError(
            "An encryption key (SSE-C) is not sent over plain HTTP.", hint="Name an endpoint of https://, as S3 does."
        )
    return _endpoint(found.url, schemes["sigv4"]["signingRegion"], schemes["sigv4"]["signingName"])


def load_rules(session: S3Session) -> EndpointProvider:
    """Return botocore's endpoint rules, read from its files on first use."""
    return _rules(session.aws.get_component("data_loader"))


@cache
def _rules(loader: Loader) -> EndpointProvider:
    # load_service_model looks through the folders of all services first, which takes as long as the rest.
    version = loader.determine_latest_version("s3", _RULES)
    return EndpointProvider(loader.load_data(f"s3/{version}/{_RULES}"), loader.load_data("partitions"))


def _check_bucket(bucket: str) -> None:
    is_name = VALID_BUCKET.fullmatch(bucket) and bucket.strip(".")  # "." and ".." mean something else in a path
    if not is_name and not VALID_S3_ARN.fullmatch(bucket):
        raise ConfigurationError(
            f"{bucket!r} is neither the name of a bucket nor the ARN of an access point.",
            hint="Names consist of letters, digits, dots, hyphens and underscores.",
        )
    if bucket.endswith(_DIRECTORY_SUFFIXES):
        raise ConfigurationError(
            f"{bucket!r} is a directory bucket (S3 Express One Zone), which is not supported.",
            hint="Copy the objects to a general purpose bucket and mount that.",
        )


def _parameters(session: S3Session, bucket: str, region: str) -> dict[str, Any]:
    """Return the rules' input as botocore's `ClientArgsCreator` and `customize_endpoint_resolver_builtins` make it."""
    s3, url = session.s3_settings, session.endpoint_url
    is_arn = bucket.startswith("arn:")
    plain_region = region.replace("fips-", "").replace("-fips", "")
    fips = plain_region != region or session.setting("use_fips_endpoint")
    dual_stack = s3.get("use_dualstack_endpoint") or session.setting("use_dualstack_endpoint")
    accelerate = bool(s3.get("use_accelerate_endpoint"))
    style = "path" if session.config.force_path_style else s3.get("addressing_style")
    if is_arn or accelerate:
        path_style = False
    elif url is not None and not is_s3_accelerate_url(url):
        path_style = style != "virtual"
    else:
        path_style = style == "path"
    parameters = {
        "Bucket": bucket,
        "Region": plain_region,
        "UseFIPS": url is None and bool(fips),
        "UseDualStack": url is None and bool(dual_stack),
        "Accelerate": accelerate,
        "ForcePathStyle": path_style,
        # As in the AWS CLI, and unlike in botocore, the global host is used only on request. A VPC's private names
        # for S3 do not cover it.
        "UseGlobalEndpoint": plain_region == "us-east-1" and s3.get("us_east_1_regional_endpoint") == "legacy",
        "UseArnRegion": s3.get("use_arn_region", True),
        "DisableMultiRegionAccessPoints": s3.get("s3_disable_multiregion_access_points", False),
    }
    return parameters if url is None else parameters | {"Endpoint": url}


def _endpoint(url: str, region: str, signing_name: str) -> Endpoint:
    parts = urlsplit(url)
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    # The rules put an access point's name before any host, but nothing can stand before an address.
    if not is_host(host) or not parts.netloc.lower().startswith(shown):
        raise ConfigurationError(
            f"The S3 endpoint's host {parts.netloc!r} is not a host name.",
            hint="Correct --endpoint-url. Write letters beyond ASCII as xn--..., and reach an access point by a name.",
        )
    default_port = DEFAULT_PORTS[parts.scheme]
    port = default_port if parts.port is None else parts.port
    return Endpoint(
        scheme=parts.scheme,
        host=host,
        port=port,
        host_header=shown if port == default_port else f"{shown}:{port}",
        base_path=quote(parts.path, safe=_SAFE_IN_PATH).rstrip("/"),
        region=region,
        signing_name=signing_name,
        proxy=proxy_for(url),
    )
