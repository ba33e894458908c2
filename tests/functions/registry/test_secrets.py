"""What the vault seals and opens, and that nothing that was to be sealed is readable in the registry's files."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from sockd.base.config import FunctionDefaults, SecretsConfig
from sockd.base.errors import BadConfig, BadFunctionConfig, SecretsLocked
from sockd.functions.code.function_config import MASK, FunctionConfig
from sockd.functions.registry.registry import Registry
from sockd.functions.registry.registry_schema import SCHEMA_VERSION
from sockd.functions.registry.secrets import KEY_FILE_VARIABLE, Vault, key_path
from tests.support.old_registry import old_registry

pytestmark = pytest.mark.anyio
VALUE = "a-value-that-nobody-may-read"
CONFIG = FunctionConfig(env={"A": VALUE}, secrets={"B": VALUE + "-either"})


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    vault = Vault.at(tmp_path / "secret.key")
    vault.make_key()
    return vault


async def put(registry: Registry, name: str, config: FunctionConfig, digest: str = "d") -> None:
    await registry.put(name, digest=digest, code_bytes=1, handler="f:f", config=config.to_json(), closure="[]")


def files(directory: Path) -> bytes:
    """The bytes of every file there is, one after the other."""
    return b"".join(file.read_bytes() for file in sorted(directory.iterdir()))


def test_what_is_sealed_opens_again_and_shows_nothing(vault: Vault, tmp_path: Path) -> None:
    sealed = vault.seal("f", CONFIG.to_json())
    assert VALUE not in sealed and json.loads(sealed)["env"] == {}
    assert vault.open("f", sealed) == CONFIG.to_json()
    assert Vault.at(tmp_path / "secret.key").open("f", sealed) == CONFIG.to_json()
    assert vault.seal("f", CONFIG.to_json()) != sealed, "each has a nonce of its own"


def test_settings_without_an_environment_stay_as_they_are(vault: Vault) -> None:
    plain = FunctionConfig().to_json()
    assert vault.seal("f", plain) == plain == vault.open("f", plain)


@pytest.mark.parametrize("spoil", ["another function", "another key", "no key", "a changed bit"])
def test_what_does_not_open_is_a_typed_error(vault: Vault, tmp_path: Path, spoil: str) -> None:
    sealed = vault.seal("f", CONFIG.to_json())
    name = "f"
    if spoil == "another function":
        name = "g"
    elif spoil == "another key":
        vault = Vault(tmp_path, bytes(32))
    elif spoil == "no key":
        vault = Vault(tmp_path, None)
    else:
        sealed = sealed.replace("v1.", "v1.AAAA")
    with pytest.raises(SecretsLocked, match="put the right key back"):
        FunctionConfig.from_json(vault.open(name, sealed)).opened()


def test_a_key_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    path.write_bytes(bytes(32))
    path.chmod(0o640)
    with pytest.raises(BadConfig, match="chmod 600"):
        Vault.at(path)
    path.chmod(0o600)
    path.write_bytes(bytes(31))
    with pytest.raises(BadConfig, match="32 random bytes"):
        Vault.at(path)


def test_the_key_may_live_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_FILE_VARIABLE, raising=False)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    none = SecretsConfig()
    assert key_path(none, tmp_path / "state") == tmp_path / "state" / "secret.key"
    (tmp_path / "sockd.key").write_bytes(bytes(32))
    assert key_path(none, tmp_path / "state") == tmp_path / "sockd.key"
    monkeypatch.setenv(KEY_FILE_VARIABLE, "/b")
    assert key_path(none, tmp_path) == Path("/b")
    assert key_path(SecretsConfig(key_file="/a"), tmp_path) == Path("/a")


async def test_the_registry_keeps_environments_sealed(tmp_path: Path) -> None:
    registry = await Registry.open(tmp_path / "registry.sqlite", keep_versions=2)
    for number in range(5):
        await put(registry, "f", CONFIG, f"d{number}")
    assert registry.get("f").settings == CONFIG
    assert registry.get("f").settings is registry.get("f").settings, "parsed once"
    assert registry.list()[0].config == registry.versions("f")[0].config == CONFIG.to_json()
    before = registry.get("f")
    await put(registry, "f", CONFIG, "d4")
    assert registry.get("f") == before, "the same again is no new version"
    assert VALUE.encode() not in files(tmp_path)
    await registry.aclose()
    assert VALUE.encode() not in files(tmp_path)


async def test_what_an_older_sockd_kept_readable_is_sealed_and_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    old = old_registry(path, 2)
    old.execute("PRAGMA wal_autocheckpoint = 0")
    for number in range(2, 40):  # and freed pages, as deletes leave them
        row = ("f1", number, "d", 1, "f:f", CONFIG.to_json() + " " * 3000, "[]", float(number))
        old.execute("INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, '')", row)
    old.execute("DELETE FROM versions WHERE version BETWEEN 10 AND 38")
    old.execute("UPDATE functions SET version = 39")
    old.execute("PRAGMA wal_checkpoint(PASSIVE)")
    assert VALUE.encode() in files(tmp_path), "in the file and in its log"
    killed = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    old.close()
    for name, content in killed.items():  # as a SIGKILL leaves them: closing tidied up
        (tmp_path / name).write_bytes(content)
    registry = await Registry.open(path)
    assert registry.get("f1").settings == CONFIG
    assert VALUE.encode() not in files(tmp_path)
    await registry.aclose()
    assert VALUE.encode() not in files(tmp_path)
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    database.close()


async def test_no_new_key_is_made_while_the_lost_one_may_come_back(tmp_path: Path) -> None:
    path, key = tmp_path / "registry.sqlite", tmp_path / "secret.key"
    registry = await Registry.open(path)
    await put(registry, "secretive", CONFIG)
    await put(registry, "plain", FunctionConfig())
    await registry.aclose()
    kept = key.read_bytes()
    key.unlink()
    registry = await Registry.open(path)
    assert not key.exists()
    assert registry.get("plain").settings == FunctionConfig()
    with pytest.raises(SecretsLocked):
        _ = registry.get("secretive").settings
    assert registry.get("secretive").readable.env == {}
    with pytest.raises(SecretsLocked, match="missing"):
        await put(registry, "other", CONFIG)
    await put(registry, "other", FunctionConfig())
    await registry.aclose()
    key.write_bytes(kept)
    key.chmod(0o600)
    registry = await Registry.open(path)
    assert registry.get("secretive").settings == CONFIG
    await registry.aclose()


def test_a_secret_is_nobodys_to_set_but_by_itself() -> None:
    for text in ('secrets = {A = "b"}', 'sealed = "v1."'):
        with pytest.raises(BadFunctionConfig, match="unknown key"):
            FunctionConfig.from_toml(text, FunctionDefaults())
    with pytest.raises(BadFunctionConfig, match="unknown key"):
        FunctionConfig.from_toml("", FunctionDefaults(), {"secrets": {"A": "b"}})
    assert CONFIG.environment == {"A": VALUE, "B": VALUE + "-either"}
    assert CONFIG.shown_environment == {"A": VALUE, "B": MASK}
    sent_back = CONFIG.changed({"env": {**CONFIG.shown_environment, "C": "new"}})
    assert sent_back.environment == {**CONFIG.environment, "C": "new"}
