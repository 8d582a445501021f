"""Fixtures for every test."""

import signal

from hypothesis import HealthCheck, settings

from tests.servers import aws_environment, moto_server, rclone_server

__all__ = ["aws_environment", "moto_server", "rclone_server"]

# How long an example takes, to be made or to be tried, is no property of the code on a machine that others use, too.
settings.register_profile("fastfuse", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fastfuse")

# A shell starts what it runs in the background with one of these ignored, and nohup the other; children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
