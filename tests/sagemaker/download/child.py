"""``python -m tests.sagemaker.download.child ENDPOINT SNAPSHOT DIRECTORY``: downloads, and prints each progress."""

import os
import sys
from pathlib import Path

from fastfuse.s3.base import ConnectionConfig
from fastfuse.sagemaker.download.file_channel import DownloadReport, download_channel
from tests.sagemaker.download.channels import settings_for


def tell(report: DownloadReport) -> None:
    print(report.done_bytes, flush=True)


def main() -> None:
    url, snapshot, directory = sys.argv[1:]
    connection = ConnectionConfig(endpoint_url=url, region="us-east-1", sign_request=False, force_path_style=True)
    download_channel(os.open(snapshot, os.O_RDONLY), connection, settings_for(Path(directory)), tell)


if __name__ == "__main__":
    main()
