"""Functions that an earlier daemon left: found, restored with their packages, shown with what they lack, opened late."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from sockd.base.errors import (
    BeingRestored,
    CodeLost,
    InstallFailed,
    NoSuchFunction,
    SecretsLocked,
)
from sockd.base.notes import Note
from sockd.functions.environments import Environments
from sockd.functions.serving import live_functions, restoring
from sockd.starts.packages.distribution import Closure
from tests.functions.harness import HELLO, opened, with_packages
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = pytest.mark.anyio


async def test_the_next_daemon_finds_the_last_ones_functions_and_no_code_without_one(
    tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index) as harness:
        first = await harness.deploy("one", HELLO)
    (tmp_path / "code" / ("0" * 64)).mkdir()
    async with opened(tmp_path, index) as harness:
        (again,) = harness.functions.live.all()
        assert again.record == first.record and again.config == first.config
        assert os.listdir(tmp_path / "code") == [first.record.digest]


async def test_a_function_whose_packages_were_lost_gets_them_when_it_is_asked_for(
    tmp_path: Path, index: PackageIndex
) -> None:
    index.add(wheel("lib", "1.0", {"lib.py": ""}))
    async with opened(tmp_path, index) as harness:
        (key,) = (await harness.deploy("needs", with_packages("lib"))).keys
    shutil.rmtree(tmp_path / "packages")
    async with opened(tmp_path, index) as harness:
        assert harness.functions.live.all() == []
        assert harness.functions.package_users.of(key) == ["needs"]
        files, index.files = index.files, {}
        shutil.rmtree(tmp_path / "uv-cache")
        with pytest.raises(InstallFailed):
            await harness.functions.live.get("needs")
        index.files = files
        found = await asyncio.gather(*(harness.functions.live.get("needs") for _ in range(3)))
        assert found[0] is found[1] is found[2]
        assert found[0].version.keys == {key} and (tmp_path / "packages" / key).is_dir()


async def test_a_function_that_cannot_run_is_shown_with_what_it_lacks(tmp_path: Path, index: PackageIndex) -> None:
    index.add(wheel("lib", "1.0", {"lib.py": ""}))
    async with opened(tmp_path, index) as harness:
        await harness.deploy("needs", with_packages("lib"), memory_mb=64, env={"A": "1"})
        codeless = await harness.deploy("codeless", {"f.py": "def f(event): return 2"})
        await harness.deploy("locked", HELLO, env={"B": "2"}, run="off")
    shutil.rmtree(tmp_path / "packages")
    shutil.rmtree(tmp_path / "code" / codeless.record.digest)
    async with opened(tmp_path, index) as harness:
        functions = harness.functions
        assert functions.live.names() == ["codeless", "locked", "needs"] and list(functions.live.by_name) == ["locked"]
        shown = functions.views.info("needs")
        assert (shown.memory_mb, shown.packages, shown.state) == (64, ["lib==1.0"], "packages to be installed")
        assert "lib==1.0" in shown.state_reason and functions.live.settings("needs").env == {"A": "1"}
        assert functions.views.info("codeless").state == "code lost" and functions.views.info("locked").state == "ready"
        with pytest.raises(CodeLost, match="deploy the function again"):
            await functions.live.get("codeless")
        await harness.deploy("codeless", {"f.py": "def f(event): return 2"})
        assert (
            functions.views.info("codeless").state == "ready"
            and functions.live.restoring.unready.get("codeless") is None
        )
    (tmp_path / "secret.key").unlink()
    async with opened(tmp_path, index) as harness:
        functions = harness.functions
        assert functions.views.info("locked").state == "secrets locked"
        assert functions.live.request_settings.run_rules == {"locked": "off"}
        with pytest.raises(SecretsLocked):
            functions.live.settings("locked")
        assert Environments(functions.live, functions.changes).secrets() == {}


async def test_a_deploy_of_a_function_whose_secrets_do_not_open_is_refused_without_force(
    tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index) as harness:
        await harness.deploy("f", HELLO, env={"A": "1"})
        environments = Environments(harness.functions.live, harness.functions.changes)
        await environments.set_secret("f", "TOKEN", "hidden")
        await environments.change("f", {"B": "2"}, [])
        await harness.functions.changes.configure("f", {"memory_mb": 256})
    key = tmp_path / "secret.key"
    away = key.rename(tmp_path / "away.key")
    async with opened(tmp_path, index) as harness:
        for refused in (
            harness.deploy("f", HELLO),
            harness.functions.changes.configure("f", {"memory_mb": 128}),
            Environments(harness.functions.live, harness.functions.changes).change("f", {"B": "3"}, []),
        ):
            with pytest.raises(SecretsLocked, match=r"variables and secrets .* key_file.* a backup .* --force"):
                await refused
    away.rename(key)
    async with opened(tmp_path, index) as harness:
        config = harness.functions.live.current("f").config
        assert (config.memory_mb, config.env, config.secrets) == (256, {"A": "1", "B": "2"}, {"TOKEN": "hidden"})
    key.unlink()
    async with opened(tmp_path, index) as harness:
        config = (await harness.deploy("f", HELLO, force=True)).config
        assert (config.memory_mb, config.env, config.secrets) == (256, {}, {})
        assert config.by_command == ["memory_mb"] and config.sealed is None
        assert [line for line in harness.progress if isinstance(line, Note)] == [
            "lost: the variables and secrets that the function had (sockd env had set B): they do not open with the worker's key",
            "kept from sockd config and sockd env: memory_mb = 256; sockd.toml changes what it names",
        ]
        await harness.deploy("f", {"f.py": "def f(event): return 2"})


async def test_packages_that_were_lost_are_installed_in_the_background(
    tmp_path: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(wheel("lib", "1.0", {"lib.py": ""}))
    async with opened(tmp_path, index) as harness:
        await harness.deploy("needs", with_packages("lib"))
    shutil.rmtree(tmp_path / "packages")
    shutil.rmtree(tmp_path / "uv-cache")
    monkeypatch.setattr(restoring, "PAUSE_S", (0.01, 0.02))
    files, index.files = index.files, {}
    async with opened(tmp_path, index) as harness:
        running = asyncio.create_task(harness.functions.live.restoring.run())
        while harness.functions.views.info("needs").state == "packages to be installed":
            await asyncio.sleep(0.01)
        assert harness.functions.views.info("needs").state == "packages missing"
        with pytest.raises(InstallFailed, match="are not on this worker any more") as failed:
            await harness.functions.live.get("needs")
        assert failed.value.retry_after_s
        index.files = files
        async with asyncio.timeout(30):
            while harness.functions.views.info("needs").state != "ready":
                await asyncio.sleep(0.01)
        running.cancel()
        assert [version.record.name for version in harness.functions.live.all()] == ["needs"]


async def test_a_call_waits_for_lost_packages_no_longer_than_its_bound(
    tmp_path: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(wheel("lib", "1.0", {"lib.py": ""}))
    async with opened(tmp_path, index) as harness:
        await harness.deploy("needs", with_packages("lib"))
        await harness.registry.publish("needs", 1, "")
    shutil.rmtree(tmp_path / "packages")
    async with opened(tmp_path, index) as harness:
        may_go_on = asyncio.Event()
        ensure = harness.packages.ensure

        async def slowly(closure: Closure, **kwargs: Any) -> None:
            await may_go_on.wait()
            await ensure(closure, **kwargs)

        monkeypatch.setattr(harness.packages, "ensure", slowly)
        harness.functions.live.restoring._wait_s = 0.05
        for qualifier in ("", "1"):
            with pytest.raises(BeingRestored, match=r"packages\.restore_wait_s") as refused:
                await harness.functions.live.get("needs", qualifier)
            assert refused.value.status == 503 and refused.value.retry_after_s
        may_go_on.set()
        harness.functions.live.restoring._wait_s = 30
        assert (await harness.functions.live.get("needs")).version.keys


async def test_no_code_is_deleted_when_the_registry_is_lost(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as harness:
        digest = (await harness.deploy("one", HELLO)).record.digest
    (tmp_path / "registry.sqlite").unlink()
    async with opened(tmp_path, index) as harness:
        assert harness.functions.live.names() == [] and os.listdir(tmp_path / "code") == [digest]


async def test_beyond_the_latest_a_function_is_opened_by_its_first_request(
    tmp_path: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(wheel("pkg", "1.0", {"pkg.py": ""}))
    async with opened(tmp_path, index) as harness:
        await harness.deploy("old", with_packages("pkg==1.0"), run="off", concurrency=7)
        await harness.deploy("reserving", HELLO, reserved_memory_mb=64)
        await harness.deploy("lost", {"f.py": "def f(event): return 2"})
        lost = harness.registry.get("lost").digest
        await harness.deploy("new", HELLO)
    shutil.rmtree(tmp_path / "code" / lost)
    monkeypatch.setattr(live_functions, "OPENED_AT_START", 1)
    async with opened(tmp_path, index) as harness:
        functions, live = harness.functions, harness.functions.live
        assert list(live.by_name) == ["new", "reserving"] and live.names() == ["lost", "new", "old", "reserving"]
        assert isinstance(live.restoring.unready["lost"].error, CodeLost)
        assert live.request_settings.run_rules == {"old": "off"}
        assert functions.views.info("old").concurrency == 7 and live.settings("old").concurrency == 7
        (key,) = (each.key for each in harness.packages.snapshot())
        assert functions.package_users.of(key) == ["old"]
        before = functions.views.info("old")
        assert (await live.get("old")).version.record.version == 1 and "old" in live.by_name
        assert functions.views.info("old") == before
        with pytest.raises(CodeLost):
            await live.get("lost")
        with pytest.raises(NoSuchFunction):
            await live.get("nobody")


async def test_a_deploy_keeps_what_a_function_has_that_was_not_called(
    tmp_path: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, index) as harness:
        await harness.deploy("old", HELLO)
        await harness.functions.changes.configure("old", {"memory_mb": 96})
        await harness.deploy("new", HELLO)
    monkeypatch.setattr(live_functions, "OPENED_AT_START", 1)
    async with opened(tmp_path, index) as harness:
        assert list(harness.functions.live.by_name) == ["new"]
        version = await harness.deploy("old", {"f.py": "def f(event): return 2"})
        assert version.config.memory_mb == 96 and version.record.version == 3
        await harness.functions.remove("old")
        assert harness.functions.live.names() == ["new"]
