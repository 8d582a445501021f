"""S3 clients behind one seam (`base`): `direct` where it can, `rust` over TLS where that cannot, `boto` for everything
else, `memory` for tests.
"""
