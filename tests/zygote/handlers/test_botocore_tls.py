"""TLS contexts of botocore that were made ahead: clients have what they would have made, whatever the function has changed."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import botocore
import pytest

from tests.support.certificates import make_certificate

REPOSITORY = Path(__file__).parents[3]
SITE = Path(botocore.__file__).parents[1]
START = """
import json, os, ssl, sys
sys.path[:0] = [{site!r}, {repository!r}]
from sockd_zygote.handlers import import_hooks
import_hooks.watch_imports()
import boto3, botocore.httpsession as sessions
from sockd_zygote.handlers import botocore_data, botocore_tls as ahead
botocore_data.ROOT = {site!r}
ahead.attend(sessions)
if {prepared!r}:
    ahead.prepare()
    assert len(ahead._contexts) == 3

def client(**more):
    keys = dict(region_name="eu-west-1", aws_access_key_id="k", aws_secret_access_key="s")
    return boto3.session.Session().client("s3", **keys, **more)

def context_of(client):
    return client._endpoint.http_session._manager.connection_pool_kw["ssl_context"]

def described(context):
    names = ("protocol", "verify_mode", "check_hostname", "options", "verify_flags", "minimum_version", "maximum_version",
             "post_handshake_auth", "keylog_filename", "security_level", "num_tickets", "hostname_checks_common_name")
    return [type(context).__qualname__, *(repr(getattr(context, name)) for name in names),
            context.get_ciphers(), context.cert_store_stats(), context.session_stats()]
found = []
"""
CLIENTS = """
contexts = [context_of(client()) for _ in range(5)]
found += [len(set(map(id, contexts))), *map(described, contexts)]
contexts[0].set_ciphers("AES256-SHA256")
contexts[0].verify_mode = ssl.CERT_NONE
found += map(described, contexts)
"""
KEY_LOG = """
os.environ["SSLKEYLOGFILE"] = os.path.abspath("keys")
found += [described(context_of(client())), os.path.exists("keys")]
del os.environ["SSLKEYLOGFILE"]
found += [described(context_of(client()))]
"""
CIPHERS = "sessions.DEFAULT_CIPHERS = 'AES256-SHA256'; found += [described(context_of(client()))]"
OPTIONS = "sessions.OP_NO_TICKET = ssl.OP_NO_TLSv1_2; found += [described(context_of(client()))]"
OWN_CLASS = """
class Strict(ssl.SSLContext):
    def __new__(cls, *args):
        made = super().__new__(cls, *args)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        return made
sessions.SSLContext = Strict
found += [described(context_of(client()))]
"""
PATCHED_CLASS = """
new = ssl.SSLContext.__new__
def strict(cls, *args, **kwargs):
    made = new(cls, *args, **kwargs)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    return made
ssl.SSLContext.__new__ = strict
found += [described(context_of(client()))]
"""
ARGUMENTS = "found += [described(sessions.create_urllib3_context(ciphers='AES256-SHA256', cert_reqs=ssl.CERT_NONE))]"
AFTER_AN_INIT = """
made = []
new = ssl.SSLContext.__new__
def counting(cls, *args, **kwargs):
    made.append(args)
    return new(cls, *args, **kwargs)
ssl.SSLContext.__new__ = counting
ahead._contexts.clear()
ahead._is_prepared = False
ahead.prepare()
found += [len(made), described(context_of(client())), len(made)]
"""
FLAGS = "found += [sorted(each._value2member_map_) for each in (ssl.Options, ssl.VerifyFlags, ssl.VerifyMode, ssl.TLSVersion)]"
COMBINED = (
    "asked = ssl.OP_NO_SSLv3 | ssl.OP_NO_COMPRESSION; client(); found += [ssl.Options(int(asked)) is asked]; " + FLAGS
)
SERVER = """
try:
    context_of(client()).wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True).do_handshake()
except ssl.SSLError as error:
    found.append(str(error))
"""


def found(code: str, directory: Path, *, prepared: bool, env: dict[str, str] | None = None) -> Any:
    """What a program finds in a process of its own."""
    start = START.format(site=str(SITE), repository=str(REPOSITORY), prepared=prepared)
    directory.mkdir()
    command = [sys.executable, "-S", "-c", f"{start}{code}\nprint(json.dumps(found))"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=directory, env=env or {"PATH": "/usr/bin"})
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.replace(str(directory), ""))


@pytest.mark.parametrize(
    "code",
    [
        *(CLIENTS, KEY_LOG, CIPHERS, OPTIONS, OWN_CLASS, PATCHED_CLASS, ARGUMENTS, SERVER, AFTER_AN_INIT),
        *(FLAGS, COMBINED),
    ],
)
def test_a_context_that_was_made_ahead_is_what_the_client_would_have_made(code: str, tmp_path: Path) -> None:
    ahead, own = (found(code, tmp_path / str(is_), prepared=is_) for is_ in (True, False))
    assert ahead == own and own


COUNTED = """
left = [len(ahead._contexts)]
for _ in range(2):
    context_of(boto3.session.Session().client("s3", region_name="eu-west-1"))
    left.append(len(ahead._contexts))
found += left
"""


def test_the_first_client_is_handed_all_three(tmp_path: Path) -> None:
    env = {"PATH": "/usr/bin", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    assert found(COUNTED, tmp_path / "ahead", prepared=True, env=env) == [3, 0, 0]


RANDOMS = """
kept = list(ahead._contexts)
def hello():
    out = ssl.MemoryBIO()
    talk = kept[0].wrap_bio(ssl.MemoryBIO(), out, server_hostname="a.test")
    try:
        talk.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()[11:43].hex()
for _ in range(2):
    reader, writer = os.pipe()
    if not os.fork():
        os.write(writer, hello().encode()); os._exit(0)
    os.wait()
    found.append(os.read(reader, 100).decode())
"""


def test_forks_that_share_a_context_say_hello_with_other_numbers(tmp_path: Path) -> None:
    first, second = found(RANDOMS, tmp_path / "forks", prepared=True)
    assert len(first) == len(second) == 64 and first != second


class Buckets(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        body = b"<ListAllMyBucketsResult><Buckets></Buckets></ListAllMyBucketsResult>"
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


ASK = """
for more in ({{}}, {{"verify": os.environ["AUTHORITY"]}}, {{"verify": False}}):
    try:
        found.append(client(endpoint_url={url!r}, **more).list_buckets()["Buckets"])
    except Exception as error:
        found.append(type(error).__name__)
"""


@pytest.mark.parametrize("variable", ["", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
def test_certificates_are_those_that_variables_and_arguments_name(variable: str, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path / "certificate.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Buckets)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        env = {"PATH": "/usr/bin", "AUTHORITY": str(certificate), **({variable: str(certificate)} if variable else {})}
        code = ASK.format(url=f"https://localhost:{server.server_port}")
        ahead, own = (found(code, tmp_path / str(is_), prepared=is_, env=env) for is_ in (True, False))
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
    assert ahead == own == [[] if variable else "SSLError", [], []]
