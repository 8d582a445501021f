"""S3 clients behind one seam (`base`): `direct` for plain HTTP and small ranges, `rust` for large ones over TLS, `boto`
for everything else, `memory` for tests.
"""
