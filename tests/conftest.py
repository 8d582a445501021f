"""Fixtures for every test."""

from tests.servers import aws_environment, moto_server, rclone_server

__all__ = ["aws_environment", "moto_server", "rclone_server"]
