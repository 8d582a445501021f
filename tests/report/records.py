"""Records that were made up: an hour of a mount, and of a job with two channels."""

from typing import Any

from fastfuse.filesystem.figures.recorder import Recorder
from fastfuse.metrics import Counters

START = 1_795_000_000.0
HOSTILE = "</table><script>document.title='taken'</script><img src=http://127.0.0.1:1/x onerror=alert(1)>'\"&\x1b[2J"


def samples(seconds: int = 3600) -> dict[str, Any]:
    """Read 100 MB a second from S3; one reader waits for a tenth of each second, three for all of the last minute.

    Each read takes two seconds.
    """
    counters = Counters()
    recorder = Recorder(counters)
    took = counters.observer("fastfuse_read_seconds")
    saw_first_byte = counters.observer("fastfuse_get_first_byte_seconds")
    counters.set("fastfuse_memory_target_bytes", 256 << 20)
    counters.set("fastfuse_pool_bytes", 64 << 20)
    grown = {"read_served_bytes": 10**9, "fetched_bytes": 10**9, "in_use_seconds": 10**7}
    grown |= {"requests": 100, "answered_gets": 100}
    for second in range(0, seconds, 10):
        recorder.look(float(second), START + second)
        is_last = second >= seconds - 60
        for name, number in grown.items():
            counters.count(f"fastfuse_{name}", number)
        counters.count("fastfuse_blocked_seconds", 3 * 10**7 if is_last else 10**6)
        counters.count("fastfuse_stalled_seconds", 10**7 if is_last else 10**6)
        counters.count("fastfuse_fetched_parts", 100, "ahead")
        counters.count("fastfuse_errors", int(is_last), "EACCES")
        for _ in range(100):
            saw_first_byte(0.02)
        took(2.0)
    return recorder.record(START + seconds)


def mount() -> dict[str, Any]:
    return {
        "version": "1",
        "mountpoint": "/mnt/train",
        "state": "in trouble",
        "errors": [[START + 3595, f"a read failed: {HOSTILE}"]],
        "channels": [{"source": "s3://my-bucket/train", **samples()}],
    }


def job() -> dict[str, Any]:
    channels = [("train", "FastFile"), ("test", "File")]
    return {
        "version": "1",
        "job": {"TrainingJobName": "mine", "SecondaryStatus": "Failed", "FailureReason": HOSTILE, "ExitCode": 1},
        "phases": [["Downloading", START], ["Training", START + 600], ["Stopping", START + 3590]],
        "channels": [
            {"name": name, "mode": mode, "source": f"s3://b/{HOSTILE}", **samples()} for name, mode in channels
        ],
    }
