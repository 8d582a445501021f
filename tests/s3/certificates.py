"""Certificates of every kind, right and wrong, for the tests of TLS."""

import datetime
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """A certificate with its key; `chain` is what a server sends behind it."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    chain: list[x509.Certificate] = field(default_factory=list)

    def write(self, directory: Path, name: str) -> Path:
        path = directory / f"{name}.pem"
        certificates = [one.public_bytes(Encoding.PEM) for one in (self.certificate, *self.chain)]
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(b"".join([*certificates, key]))
        return path


def issue(
    *names: str,
    by: Identity | None = None,
    is_authority: bool = False,
    subject: str = "fastfuse test",
    from_days: int = -1,
    to_days: int = 1,
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.SERVER_AUTH,
) -> Identity:
    """Make a certificate for `names`, hosts or addresses, that is issued `by` another, or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    issuer, issuer_key = (name, key) if by is None else (by.certificate.subject, by.key)
    now = datetime.datetime.now(datetime.UTC)
    # A server signs data, an authority certificates and lists of revoked ones, too.
    key_usage = x509.KeyUsage(True, False, False, False, False, is_authority, is_authority, False, False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + from_days * DAY)
        .not_valid_after(now + to_days * DAY)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(key_usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if not is_authority:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if names:
        alternatives = x509.SubjectAlternativeName([_general_name(one) for one in names])
        builder = builder.add_extension(alternatives, critical=False)
    return Identity(builder.sign(issuer_key, hashes.SHA256()), key)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
