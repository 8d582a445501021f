"""S3 clients behind one seam (`base`): `rust` for speed, `boto` for everything else, `memory` for tests."""
