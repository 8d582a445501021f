import os
import ssl
from pathlib import Path

import pytest

from fastfuse.store.transport import OriginFormSession, tls_context
from tests.servers import create_chain


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return create_chain(tmp_path)[0]


def test_authorities_are_read_once_and_again_when_they_were_replaced(bundle: Path) -> None:
    first = tls_context(str(bundle))
    assert tls_context(str(bundle)) is first
    os.utime(bundle, ns=(0, os.stat(bundle).st_mtime_ns + 1))
    again = tls_context(str(bundle))
    assert again is not first
    assert again.get_ca_certs() == first.get_ca_certs()


@pytest.mark.parametrize("verify", [True, False])
async def test_a_session_takes_the_context_that_was_made_before(verify: bool) -> None:
    async with OriginFormSession(verify) as http:
        assert http._verify is tls_context(verify)


def test_without_verification_any_certificate_of_any_host_will_do() -> None:
    context = tls_context(False)
    assert context.verify_mode is ssl.CERT_NONE
    assert not context.check_hostname


def test_with_it_the_authority_and_the_host_are_looked_at(bundle: Path) -> None:
    context = tls_context(str(bundle))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1
