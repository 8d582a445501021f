"""What to do in place of options that other programs have and fastfuse lacks.

Users of Mountpoint, s3fs, goofys, rclone and gcsfuse type what they are used to. docs/MIGRATION.md has every option.
Here are those that are typed most and that no option of fastfuse resembles, below what takes their place.
"""

from collections.abc import Mapping
from typing import Final

# fmt: off
_OPTIONS: Final[Mapping[str, str]] = {
    "the prefix is part of the source: s3://BUCKET/PREFIX": "prefix only-dir bucket",
    "leave it out: every mount is like that": "read-only implicit-dirs auto-unmount vfs-refresh s3-env-auth",
    "leave it out: every write fails with EROFS": "allow-delete allow-overwrite",
    "leave it out: fastfuse has nothing like it":
        "expected-bucket-owner bind bucket-type user-agent-prefix bwlimit tpslimit limit-bytes-per-sec links "
        "no-modtime ssl-verify-hostname",
    "leave it out: 'fastfuse mount' stays in the foreground without --daemon": "foreground f",
    "leave it out: a mount shows a listing, which 'fastfuse refresh MOUNTPOINT' renews":
        "metadata-ttl negative-metadata-ttl metadata-cache-ttl-secs stat-cache-ttl type-cache-ttl dir-cache-time "
        "kernel-list-cache-ttl-secs attr-timeout poll-interval stat-cache-expire max-stat-cache-size "
        "enable-noobj-cache",
    "--cache DIR keeps what was fetched on a local disk, up to --cache-size":
        "cache-dir max-cache-size vfs-cache-mode vfs-cache-max-size vfs-cache-max-age file-cache-max-size-mb use-cache "
        "file-cache-enable-parallel-downloads",
    "--cache-min-free SIZE stays free on the disk of --cache": "ensure-diskfree",
    "leave it out: readahead grows as files are read, within --memory-target":
        "vfs-read-ahead vfs-read-chunk-size buffer-size max-read-ahead enable-buffered-read",
    "--umask takes permissions from 0444 of files and 0555 of directories":
        "file-mode dir-mode file-perms dir-perms mp-umask",
    "mount on an empty directory": "nonempty allow-non-empty",
    # `io` and the two below were fastfuse's own before its first release.
    "leave it out: files are read through the page cache, and past it they are read no faster": "direct-io io",
    "no listing is kept unless --index FILE --index-max-age TIME says where and for how long":
        "index-cache no-index-cache",
    "--allow-other lets every user in, root too": "allow-root",
    "leave it out: keys come from the environment, ~/.aws (--profile NAME) or a role":
        "passwd-file iam-role ecs key-file token-url",
    "--no-sign-request is for public buckets": "public-bucket anonymous-access",
    "--request-payer pays for requests": "requester-pays billing-project",
    "--part-size SIZE is the most bytes of a request": "multipart-size read-part-size sequential-read-size-mb",
    "--max-connections N bounds the requests in flight":
        "multireq-max parallel-count max-threads maximum-throughput-gbps max-conns-per-host transfers",
    "--read-deadline-s SECONDS bounds all tries of a read together":
        "retries connect-timeout readwrite-timeout http-timeout http-client-timeout max-retry-sleep",
    "--endpoint-url URL names another service than AWS, --region its region": "url host endpoint custom-endpoint",
    "leave it out beside --endpoint-url, where it is the default; elsewhere write force_path_style":
        "use-path-request-style",
    "the variable https_proxy names a proxy, and no_proxy what is reached without it": "proxy",
    "--ca-bundle FILE names the authorities to trust; --no-verify-ssl trusts all": "no-check-certificate",
    "--sse-c-key-file FILE holds the key": "load-sse-c use-sse sse-c",
    "it is a setting of ~/.aws/config: use_dualstack_endpoint, or use_accelerate_endpoint below s3":
        "dual-stack transfer-acceleration",
    "--metrics-listen PORT serves Prometheus metrics": "log-metrics otlp-endpoint prometheus-port metrics-addr rc",
    "--verbose logs in detail": "debug log-severity log-level dbglevel curldbg debug-fuse debug-s3",
    "--log-file FILE takes the log": "logfile log-directory no-log",
    "--log-format json logs an object on each line": "use-json-log",
    "each option has a variable FASTFUSE_..., which 'fastfuse mount --help-all' names": "config config-file",
}
# fmt: on
INSTEAD: Final[Mapping[str, str]] = {option: text for text, options in _OPTIONS.items() for option in options.split()}


def instead_of(option: str) -> str | None:
    """Return what to do in place of `option`, with or without hyphens before it; None for one that nobody knows."""
    return INSTEAD.get(option.lstrip("-").replace("_", "-"))
