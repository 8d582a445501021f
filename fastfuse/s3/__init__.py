"""An S3 client over sockets of its own. Credentials, configuration and endpoint rules come from botocore."""
