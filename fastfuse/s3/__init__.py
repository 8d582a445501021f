"""Reads and lists S3 over sockets of its own; only the credentials, the configuration and the rules are botocore's."""
