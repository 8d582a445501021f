"""What the server is like: as fast as the machine lets it be, or in the shape of S3; plain or over TLS."""

from dataclasses import dataclass

from fastfuse.testing.server_config import Pace

__all__ = ["PROFILES", "Profile"]

# 10 to 30 ms to the first byte and about 90 MB/s for each connection is what S3 gives to a client in its region:
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html
_S3 = Pace(first_byte_delay_s=0.020, rate_bytes_per_s=90e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of server."""

    name: str
    description: str
    pace: Pace
    is_tls: bool = False

    def get_s(self, size_bytes: int) -> float:
        """The least that one GET of so many bytes takes: the delay and the transfer."""
        rate = self.pace.rate_bytes_per_s
        return self.pace.first_byte_delay_s + (size_bytes / rate if rate else 0.0)


_ALL = (
    Profile(name="s3", description="20 ms to the first byte, 90 MB/s for each connection", pace=_S3),
    Profile(name="s3-tls", description="20 ms to the first byte, 90 MB/s for each connection, TLS", pace=_S3,
            is_tls=True),
    Profile(name="fast", description="no delay, no limit", pace=Pace()),
    Profile(name="fast-tls", description="no delay, no limit, TLS", pace=Pace(), is_tls=True),
)  # fmt: skip
PROFILES = {profile.name: profile for profile in _ALL}
