"""A mount outlives the files that it was started from: a new version, or a new Python, takes their place."""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from unittest.mock import Mock

import pytest

from fastfuse.errors import FastfuseError
from fastfuse.filesystem.processes import credential_finder
from fastfuse.filesystem.processes.children import heard
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.credentials import Credentials
from tests.mounting import ENVIRONMENT
from tests.s3.test_credentials import process_reply

# A supervisor's process, and the one that it forks to renew credentials. After `load`, no module can be found, and no
# file of a package be opened.
_RENEWAL = """
import os, sys
from datetime import UTC, datetime, timedelta
from aiobotocore import credentials
from fastfuse.filesystem import supervisor
from fastfuse.filesystem.processes.children import message_of
from fastfuse.filesystem.processes.credential_finder import CredentialFinder, _found
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.credentials import Credentials

def gone(event, arguments):
    if event == "open" and any(place in str(arguments[0]) for place in ("/python3", "/fastfuse/")):
        raise FileNotFoundError(2, "gone", arguments[0])

# What awscrt, which need not be here, would do with the key of a sign-in by `aws login`.
credentials.EC = object()
credentials.AioLoginCredentialFetcher._load_private_key = lambda fetcher, token: None
credentials._build_add_dpop_header_handler = lambda key: lambda **request: None

session = S3Session(ConnectionConfig())
until = datetime.now(UTC) + timedelta(hours=1)
session.credentials.take(Credentials(access_key="old", secret_key="-", expires_at=until, provider=sys.argv[1]))
CredentialFinder(session, os.fork).load()
sys.meta_path.clear()
sys.addaudithook(gone)
print(message_of(lambda: _found(S3Session(session.config))).decode())
"""
_ROLE = """
<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>new</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>
"""
_SIGN_IN = json.dumps({"accessToken": "fresh", "expiresIn": 3600, "refreshToken": "r"})
_LOGIN = json.dumps(
    {"accessToken": {"accessKeyId": "new", "secretAccessKey": "s", "sessionToken": "t"}, "tokenType": "aws_sigv4"}
    | {"expiresIn": 900, "refreshToken": "r"}
)
_SIGNED_IN = json.dumps(
    {"roleCredentials": {"accessKeyId": "new", "secretAccessKey": "s", "sessionToken": "t", "expiration": 4e12}}
)


class _Role(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({"/token": _SIGN_IN, "/v1/token": _LOGIN}.get(self.path, _ROLE))

    def do_GET(self) -> None:
        assert self.headers["x-amz-sso_bearer_token"] == "fresh"
        self._answer(_SIGNED_IN)

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def role_service() -> Iterator[str]:
    """Yield the address of a service that gives each caller the keys of a role, and renews sign-ins."""
    with HTTPServer(("127.0.0.1", 0), _Role) as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{service.server_port}"
        finally:
            service.shutdown()
            thread.join()


_SSO = "sso_session = here\nsso_account_id = 123456789012\nsso_role_name = train\n[sso-session here]\n"
_SSO += "sso_region = us-east-1\nsso_start_url = https://example.com/start\n"


def sign_in(home: Path) -> None:
    """Keep a sign-in below `home` that has expired and can be renewed, as the AWS CLI keeps it."""
    cache = home / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True)
    kept = {"startUrl": "https://example.com/start", "region": "us-east-1", "accessToken": "old", "refreshToken": "r"}
    kept |= {"clientId": "i", "clientSecret": "s", "registrationExpiresAt": "2099-01-01T00:00:00Z"}
    kept |= {"expiresAt": "2020-01-01T00:00:00Z"}
    (cache / f"{hashlib.sha1(b'here').hexdigest()}.json").write_text(json.dumps(kept))


def log_in(home: Path) -> None:
    """Keep what `aws login` keeps below `home`; it has expired and can be renewed."""
    cache = home / ".aws" / "login" / "cache"
    cache.mkdir(parents=True)
    keys = {"accessKeyId": "old", "secretAccessKey": "s", "sessionToken": "t", "accountId": "123456789012"}
    keys |= {"expiresAt": "2020-01-01T00:00:00Z"}
    kept = {"accessToken": keys, "refreshToken": "r", "dpopKey": "k", "clientId": "i"}
    (cache / f"{hashlib.sha256(b'me').hexdigest()}.json").write_text(json.dumps(kept))


@pytest.mark.parametrize("provider", ["custom-process", "assume-role", "sso", "assume-role of sso", "login"])
def test_credentials_are_renewed_without_the_files_of_the_program(provider: str, tmp_path: Path) -> None:
    profiles = {
        "custom-process": f"credential_process = cat {tmp_path}/keys",
        "assume-role": "role_arn = arn:aws:iam::123456789012:role/train\nsource_profile = base\n"
        "[profile base]\naws_access_key_id = a\naws_secret_access_key = b",
        "sso": _SSO,
        "assume-role of sso": "role_arn = arn:aws:iam::123456789012:role/train\nsource_profile = base\n"
        f"[profile base]\n{_SSO}",
        "login": "login_session = me",
    }
    (tmp_path / "keys").write_text(process_reply("new", timedelta(hours=1)))
    sign_in(tmp_path)
    log_in(tmp_path)
    config = tmp_path / "config"
    config.write_text(f"[default]\nregion = us-east-1\n{profiles[provider]}\n")
    with role_service() as service:
        environment = {name: value for name, value in ENVIRONMENT.items() if "ACCESS_KEY" not in name}
        environment |= {"AWS_CONFIG_FILE": str(config), "HOME": str(tmp_path)}
        names = [f"AWS_ENDPOINT_URL_{name}" for name in ("STS", "SSO", "SSO_OIDC", "SIGNIN")]
        environment |= dict.fromkeys(names, service)
        answer = subprocess.run(
            [sys.executable, "-c", _RENEWAL, provider.partition(" ")[0]],
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
    assert heard(answer)["access_key"] == "new"


def test_an_error_names_the_files_that_are_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(credential_finder, "__file__", str(tmp_path / "gone.py"))
    session = S3Session(ConnectionConfig(profile="none"))
    with pytest.raises(FastfuseError, match=r"were removed since it started: mount again"):
        credential_finder._found(session)


async def test_what_cannot_be_loaded_for_a_renewal_is_told_before_it_is_due(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = S3Session(ConnectionConfig(region="us-east-1"))
    assert session.credentials is not None
    until = datetime.now(UTC) + timedelta(hours=1)
    session.credentials.take(Credentials(access_key="old", secret_key="-", expires_at=until))
    monkeypatch.setattr(type(session), "_new_session", Mock(side_effect=ModuleNotFoundError("No module named 'gone'")))
    await session.load_renewal()
    assert "cannot be loaded; mount or begin again before they end: ModuleNotFoundError" in caplog.text
