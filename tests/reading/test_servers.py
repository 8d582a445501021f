"""The same tour of the same objects on servers that are not ours."""

import os
import random

import pytest

from tests.mounting import mounted
from tests.semantics.places import direct_read, tree
from tests.servers import S3Server

GENERATOR = random.Random(13)
PREFIX = "tour"
CONTENTS = {
    **{f"plain/{size}": GENERATOR.randbytes(size) for size in (0, 1, 4096, 100_001, (1 << 20) + 1, (9 << 20) + 5)},
    **{f"flat/{number:03}": b"%d" % number for number in range(30)},
    "a": b"a file before a/ in the order of keys",
}
NAMES = (
    *("sp ace", " leading", "per%cent", "per%20cent", "plus+", "que?ry", "ha#sh", "am&p", "<lt>", "'single'"),
    *('"double"', "back\\slash", "🎉", "é", "semi;colon", "co:lon", "eq=ual", "~", "*", "$x", "[x]", "a" * 255),
)


@pytest.fixture(params=["moto", "rclone"])
def server(request: pytest.FixtureRequest, moto_server: S3Server, rclone_server: S3Server) -> S3Server:
    return moto_server if request.param == "moto" else rclone_server


def fill(server: S3Server, contents: dict[str, bytes]) -> None:
    for key, data in contents.items():
        server.client.put_object(Bucket=server.bucket, Key=f"{PREFIX}/{key}", Body=data)


def test_a_tour_sees_what_was_put(server: S3Server) -> None:
    """D1, N5, N6, A1"""
    contents = CONTENTS | {f"names/{name}": name.encode() for name in NAMES}
    fill(server, contents)
    with mounted(f"s3://{server.bucket}/{PREFIX}", server.endpoint_url, "--part-size", "1MiB") as mount:
        assert tree(mount.path) == contents
        assert all((mount.path / key).stat().st_size == len(data) for key, data in contents.items())
        assert os.listdir(mount.path / "flat") == sorted(os.listdir(mount.path / "flat"))
        big = f"plain/{(9 << 20) + 5}"
        assert direct_read(mount.path / big, 300_000, 5 << 20) == contents[big][5 << 20 :][:300_000]
        assert not (mount.path / "absent").exists()
