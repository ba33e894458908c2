"""Keys by themselves: what is kept of them, which texts are keys, what each allows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from sockd.base.errors import BadConfig, BadRequest, KeyNeeded, KeyNotEnough, NoSuchKey
from sockd.http.access.keys import MAX_KEYS, Key, Keys, KeysFile

pytestmark = pytest.mark.anyio


async def test_a_key_is_known_by_its_hash_alone(tmp_path: Path) -> None:
    keys = Keys.open(tmp_path / "keys.json")
    text = await keys.add("ci", ["deploy", "read"], ["shop"])
    (kept,) = json.loads((tmp_path / "keys.json").read_text())
    assert kept["digest"] == hashlib.sha256(text.rpartition("_")[2].encode()).hexdigest()
    assert kept["rights"] == ["read", "deploy"]
    again = Keys.open(tmp_path / "keys.json").bearer(f"bearer  {text} ".encode())
    assert (again.name, again.functions) == ("ci", ["shop"])
    again.check("read", "shop")
    for right, function in (("invoke", "shop"), ("read", "other"), ("read", None)):
        with pytest.raises(KeyNotEnough):
            again.check(right, function)  # type: ignore[arg-type]


@pytest.mark.parametrize("shown", [None, b"", b"Bearer", b"Bearer ", b"Basic x", b"Bearer sockd_0_0", b"\xff" * 100])
async def test_what_is_no_key(tmp_path: Path, shown: bytes | None) -> None:
    keys = Keys.open(tmp_path / "keys.json")
    await keys.add("a", ["read"])
    with pytest.raises(KeyNeeded) as refused:
        keys.bearer(shown)
    assert ("invalid_token" in refused.value.challenge) == (shown is not None)


async def test_names_are_used_once_and_keys_are_bounded(tmp_path: Path) -> None:
    keys = Keys(KeysFile(tmp_path / "keys.json"), [Key(f"{n:08x}", f"k{n}", "", ["read"]) for n in range(MAX_KEYS - 1)])
    await keys.add("last", ["read"])
    for name in ("last", "more", "a b", ""):
        with pytest.raises(BadRequest):
            await keys.add(name, ["read"])
    with pytest.raises(BadRequest):
        await keys.add("a", [])
    await keys.remove("last")
    with pytest.raises(NoSuchKey):
        await keys.remove("last")
    with pytest.raises(BadRequest):
        await keys.add("a", ["read"], ["no/name"])


async def test_a_key_that_could_not_be_written_is_none_and_one_that_was_revoked_stays_so(tmp_path: Path) -> None:
    keys = Keys.open(tmp_path / "keys.json")
    text = await keys.add("a", ["read"])
    (tmp_path / ".keys.json.tmp").mkdir()
    with pytest.raises(OSError):
        await keys.add("b", ["read"])
    assert [key.name for key in keys.list()] == ["a"]
    with pytest.raises(OSError):
        await keys.remove("a")
    with pytest.raises(KeyNeeded):
        keys.bearer(f"Bearer {text}".encode())


async def test_a_damaged_file_is_no_worker_without_keys(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('[{"id": 1}]')
    with pytest.raises(BadConfig):
        Keys.open(tmp_path / "keys.json")
