"""Private package indexes: which a function may choose, whose credentials are used, and where these do not appear."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sockd.linux import syscalls
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = pytest.mark.root

PASSWORD = "p/ss%w=rd"
QUOTED = "p%2Fss%25w%3Drd"
CODE = "import lib\ndef f(event): return lib.FROM\n"
BUNDLE = os.path.realpath("/etc/ssl/certs/ca-certificates.crt")


@pytest.fixture(scope="module")
def private() -> Iterator[PackageIndex]:
    private = PackageIndex(credentials=f"user:{PASSWORD}")
    private.add(wheel("lib", "1.0", {"lib.py": "FROM = 'private'\n"}))
    private.add(wheel("own", "1.0", {"own.py": ""}, requires=("lib",)))
    yield private
    private.close()


@pytest.fixture(scope="module")
def config(private: PackageIndex, index: PackageIndex) -> str:
    index.add(wheel("lib", "9.0", {"lib.py": "FROM = 'public'\n"}))
    index.add(wheel("other", "1.0", {"other.py": ""}))
    url = private.url.replace("//", f"//user:{QUOTED}@")
    return f'[packages.indexes]\ncorp = "{url}"\n'


def settings(text: str, requirements: str = "lib") -> dict[str, str]:
    return {"f.py": CODE, "requirements.txt": requirements, "sockd.toml": f"[packages]\n{text}\n"}


def test_a_function_chooses_an_index_of_the_workers(daemon: RunningDaemon, private: PackageIndex) -> None:
    daemon.deploy("usual", {"f.py": CODE, "requirements.txt": "lib"})
    assert daemon.call("usual") == "public"
    for index in ("corp", private.url, f"{private.url}/"):
        daemon.deploy("chosen", settings(f'index = "{index}"'))
        assert daemon.call("chosen") == "private"


def test_an_extra_index_comes_first_and_hides_what_others_have(daemon: RunningDaemon) -> None:
    """A stranger's package of the same name on the public index is no answer for a private one, whatever its version."""
    info = daemon.deploy("extra", settings('extra_index = ["corp"]', "own\nother\n"))
    assert info["packages"] == ["lib==1.0", "other==1.0", "own==1.0"]
    assert daemon.call("extra") == "private"


@pytest.mark.parametrize(
    "line",
    [
        'index = "other"',
        'index = "http://169.254.169.254/simple"',
        'index = "file:///etc"',
        'extra_index = ["http://127.0.0.1:1/simple"]',
        'index = "http://user:secret@127.0.0.1:1/simple"',
        'indx = "corp"',
    ],
)
def test_another_index_is_refused(daemon: RunningDaemon, line: str) -> None:
    with pytest.raises(DeployFailed, match=r"packages\.") as refused:
        daemon.deploy("refused", settings(line))
    assert refused.value.status == 400 and "secret" not in refused.value.message


def test_credentials_are_nowhere(daemon: RunningDaemon) -> None:
    daemon.deploy("chosen", settings('index = "corp"', "own"))
    with pytest.raises(DeployFailed) as refused:
        daemon.deploy("refused", settings('index = "corp"', "lib>=2"))
    shown = [
        refused.value.message,
        *daemon.lines,
        *(str(daemon.manage("GET", path).body) for path in ("/functions", "/status", "/packages", "/traces")),
    ]
    assert not [text for text in shown if QUOTED in text or PASSWORD in text]
    files = [Path(root, name) for root, _, names in os.walk(daemon.state) for name in names]
    words = [each.encode() for each in (PASSWORD, QUOTED)]
    found = [file for file in files if file.is_file() and any(word in file.read_bytes() for word in words)]
    assert len(files) > 10 and not found


def test_a_netrc_of_the_worker_is_used(tmp_path: Path, private: PackageIndex) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login user password {PASSWORD}\n")
    netrc.chmod(0o600)
    config = f'[packages]\nindex_url = "{private.url}"\n'
    daemon = RunningDaemon.start(tmp_path / "state", config, env={"NETRC": str(netrc)})
    try:
        daemon.deploy("f", {"f.py": CODE, "requirements.txt": "lib"})
        assert daemon.call("f") == "private"
        assert not [line for line in daemon.lines if PASSWORD in line]
        daemon.terminate()
    finally:
        daemon.close()


def test_the_hosts_certificates_are_trusted(tmp_path: Path) -> None:
    """A private CA that was installed on the host, and nowhere else."""
    if not os.path.exists(BUNDLE):
        pytest.skip("no bundle of certificates here")
    authority, context = certificates(tmp_path)
    secure = PackageIndex(tls=context)
    secure.add(wheel("lib", "1.0", {"lib.py": "FROM = 'tls'\n"}))
    bundle = tmp_path / "bundle"
    bundle.write_bytes(Path(BUNDLE).read_bytes() + authority)
    try:
        refused = deployed(tmp_path / "without", secure)
        assert "certificate" in refused.lower() or "did not answer" in refused
        # The tests have a mount namespace of their own.
        syscalls.mount(str(bundle), BUNDLE, None, syscalls.MountFlag.BIND)
        try:
            assert deployed(tmp_path / "with", secure) == "tls"
        finally:
            syscalls.umount(BUNDLE)
    finally:
        secure.close()


def deployed(state: Path, index: PackageIndex) -> str:
    """What a new daemon's function answers, or why it was not deployed."""
    daemon = RunningDaemon.start(state, f'[packages]\nindex_url = "{index.url}"\n', env={"UV_HTTP_RETRIES": "0"})
    try:
        daemon.deploy("f", {"f.py": CODE, "requirements.txt": "lib"})
        return str(daemon.call("f"))
    except DeployFailed as error:
        return str(error.message)
    finally:
        daemon.terminate()
        daemon.close()


def certificates(directory: Path) -> tuple[bytes, ssl.SSLContext]:
    """An authority as PEM, and a server that it vouches for."""
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sockd test authority")])
    keys = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def signed(subject: x509.Name, key: ec.EllipticCurvePrivateKey, is_authority: bool) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        )
        return builder.sign(keys[0], hashes.SHA256())

    authority = signed(name, keys[0], True)
    server = signed(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "index")]), keys[1], False)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (directory / "key").write_bytes(keys[1].private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    (directory / "cert").write_bytes(server.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "cert", directory / "key")
    return authority.public_bytes(pem), context
