"""Functions below the APIs: what a deploy records, what an earlier daemon left, who uses what, what may be reserved.

No sandbox is made here; registry, code store, install cache and budget are real."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sockd.base.config import CodeConfig, Config, PackageConfig
from sockd.base.errors import (
    BadFunctionConfig,
    BadRequest,
    BeingRestored,
    CodeLost,
    InstallFailed,
    NoCapacity,
    NoSuchFunction,
    ResolveFailed,
    SecretsLocked,
)
from sockd.base.notes import Note
from sockd.functions.code.code_store import CodeStore
from sockd.functions.environments import Environments
from sockd.functions.functions import Functions
from sockd.functions.registry.registry import Registry
from sockd.functions.serving import live_functions, restoring
from sockd.functions.serving.function import Caches
from sockd.isolation.networks.networks import Networks
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.starts.packages.distribution import Closure
from sockd.starts.packages.install_cache import InstallCache
from sockd_zygote import protocol
from tests.support.package_index import PackageIndex, wheel

pytestmark = pytest.mark.anyio

MB = 1 << 20


class Handlers:
    """A handler cache that keeps nothing."""

    def __init__(self) -> None:
        self.dropped: list[Any] = []

    def drop(self, program: Any) -> None:
        self.dropped.append(program)


class House:
    """What one daemon would have on a state directory."""

    def __init__(self, state: Path, index: PackageIndex, registry: Registry, networks: Networks | None = None) -> None:
        for name in ("tmp", "code", "packages"):
            (state / name).mkdir(exist_ok=True)
        self.state = state
        self.progress: list[str] = []
        """What all deploys said."""
        self.budget = MemoryBudget(1024 * MB)
        self.handlers = Handlers()
        self.packages = InstallCache(PackageConfig(index_url=index.url), state / "packages", state / "tmp")
        code = CodeStore(state / "code", state / "tmp", CodeConfig())
        code.recover()
        self.registry = registry
        lineages = SimpleNamespace(expect=lambda lineage, at_once: None, release=lambda lineage: None)
        tree: Any = SimpleNamespace(lineages=lineages)
        self.used: list[list[Any]] = []
        """For each removal, the views that were left."""
        learner: Any = SimpleNamespace(
            adopt=lambda view: None,
            end_unused=self.used.append,
            forget_reason=lambda view: None,
            functions_before=list,
        )
        caches = Caches(self.handlers, tree, starts=None, learner=learner, budget=self.budget, networks=networks)  # type: ignore[arg-type]
        self.functions = Functions(Config(), self.registry, code, self.packages, caches)

    async def deploy(self, name: str, files: dict[str, str], **overrides: Any) -> Any:
        path = self.state / "tmp" / f"{name}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in files.items():
                archive.writestr(file, text)
        try:
            return await self.functions.deploys.deploy(name, path, {"check": False, **overrides}, self.progress.append)
        finally:
            path.unlink()


@contextlib.asynccontextmanager
async def opened(state: Path, index: PackageIndex, networks: Networks | None = None) -> AsyncIterator[House]:
    house = House(state, index, await Registry.open(state / "registry.sqlite", keep_versions=2), networks)
    try:
        await house.packages.recover()
        house.functions.load()
        yield house
    finally:
        house.functions.close()
        await house.packages.aclose()


HELLO = {"f.py": "def f(event): return 1"}


def with_packages(*requirements: str) -> dict[str, str]:
    return {"f.py": "def f(event): return 1", "requirements.txt": "\n".join(requirements)}


async def test_a_deployed_function_is_found_and_an_unknown_one_is_not(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as house:
        version = await house.deploy("hello", HELLO, memory_mb=64)
        assert (await house.functions.live.get("hello")).version is version
        assert house.functions.live.current("hello") is version and house.functions.live.all() == [version]
        assert version.info().memory_mb == 64 and version.record.handler == "f:f"
        for ask in (house.functions.live.get("nobody"), house.functions.remove("nobody")):
            with pytest.raises(NoSuchFunction):
                await ask
        with pytest.raises(NoSuchFunction):
            house.functions.live.current("nobody")
        with pytest.raises(BadFunctionConfig):
            await house.deploy("no/name".replace("/", "."), HELLO)


async def test_the_next_daemon_finds_the_last_ones_functions_and_no_code_without_one(
    tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index) as house:
        first = await house.deploy("one", HELLO)
    (tmp_path / "code" / ("0" * 64)).mkdir()
    async with opened(tmp_path, index) as house:
        (again,) = house.functions.live.all()
        assert again.record == first.record and again.config == first.config
        assert os.listdir(tmp_path / "code") == [first.record.digest]


async def test_a_function_whose_packages_were_lost_gets_them_when_it_is_asked_for(
    tmp_path: Path, index: PackageIndex
) -> None:
    index.add(wheel("lib", "1.0", {"lib.py": ""}))
    async with opened(tmp_path, index) as house:
        (key,) = (await house.deploy("needs", with_packages("lib"))).keys
    shutil.rmtree(tmp_path / "packages")
    async with opened(tmp_path, index) as house:
        assert house.functions.live.all() == []
        assert house.functions.package_users.of(key) == ["needs"]
        files, index.files = index.files, {}
        shutil.rmtree(tmp_path / "uv-cache")
        with pytest.raises(InstallFailed):
            await house.functions.live.get("needs")
        index.files = files
        found = await asyncio.gather(*(house.functions.live.get("needs") for _ in range(3)))
        assert found[0] is found[1] is found[2]
        assert found[0].version.keys == {key} and (tmp_path / "packages" / key).is_dir()


async def test_a_function_that_cannot_run_is_shown_with_what_it_lacks(tmp_path: Path, index: PackageIndex) -> None:
    index.add(wheel("lib", "1.0", {"lib.py": ""}))
    async with opened(tmp_path, index) as house:
        await house.deploy("needs", with_packages("lib"), memory_mb=64, env={"A": "1"})
        codeless = await house.deploy("codeless", {"f.py": "def f(event): return 2"})
        await house.deploy("locked", HELLO, env={"B": "2"}, run="off")
    shutil.rmtree(tmp_path / "packages")
    shutil.rmtree(tmp_path / "code" / codeless.record.digest)
    async with opened(tmp_path, index) as house:
        functions = house.functions
        assert functions.live.names() == ["codeless", "locked", "needs"] and list(functions.live.by_name) == ["locked"]
        shown = functions.views.info("needs")
        assert (shown.memory_mb, shown.packages, shown.state) == (64, ["lib==1.0"], "packages to be installed")
        assert "lib==1.0" in shown.state_reason and functions.live.settings("needs").env == {"A": "1"}
        assert functions.views.info("codeless").state == "code lost" and functions.views.info("locked").state == "ready"
        with pytest.raises(CodeLost, match="deploy the function again"):
            await functions.live.get("codeless")
        await house.deploy("codeless", {"f.py": "def f(event): return 2"})
        assert (
            functions.views.info("codeless").state == "ready"
            and functions.live.restoring.unready.get("codeless") is None
        )
    (tmp_path / "secret.key").unlink()
    async with opened(tmp_path, index) as house:
        functions = house.functions
        assert functions.views.info("locked").state == "secrets locked"
        assert functions.live.request_settings.run_rules == {"locked": "off"}
        with pytest.raises(SecretsLocked):
            functions.live.settings("locked")
        assert Environments(functions.live, functions.changes).secrets() == {}


async def test_a_deploy_of_a_function_whose_secrets_do_not_open_is_refused_without_force(
    tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index) as house:
        await house.deploy("f", HELLO, env={"A": "1"})
        environments = Environments(house.functions.live, house.functions.changes)
        await environments.set_secret("f", "TOKEN", "hidden")
        await environments.change("f", {"B": "2"}, [])
        await house.functions.changes.configure("f", {"memory_mb": 256})
    key = tmp_path / "secret.key"
    away = key.rename(tmp_path / "away.key")
    async with opened(tmp_path, index) as house:
        for refused in (
            house.deploy("f", HELLO),
            house.functions.changes.configure("f", {"memory_mb": 128}),
            Environments(house.functions.live, house.functions.changes).change("f", {"B": "3"}, []),
        ):
            with pytest.raises(SecretsLocked, match=r"variables and secrets .* key_file.* a backup .* --force"):
                await refused
    away.rename(key)
    async with opened(tmp_path, index) as house:
        config = house.functions.live.current("f").config
        assert (config.memory_mb, config.env, config.secrets) == (256, {"A": "1", "B": "2"}, {"TOKEN": "hidden"})
    key.unlink()
    async with opened(tmp_path, index) as house:
        config = (await house.deploy("f", HELLO, force=True)).config
        assert (config.memory_mb, config.env, config.secrets) == (256, {}, {})
        assert config.by_command == ["memory_mb"] and config.sealed is None
        assert [line for line in house.progress if isinstance(line, Note)] == [
            "lost: the variables and secrets that the function had (sockd env had set B): they do not open with the worker's key",
            "kept from sockd config and sockd env: memory_mb = 256; sockd.toml changes what it names",
        ]
        await house.deploy("f", {"f.py": "def f(event): return 2"})


async def test_packages_that_were_lost_are_installed_in_the_background(
    tmp_path: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(wheel("lib", "1.0", {"lib.py": ""}))
    async with opened(tmp_path, index) as house:
        await house.deploy("needs", with_packages("lib"))
    shutil.rmtree(tmp_path / "packages")
    shutil.rmtree(tmp_path / "uv-cache")
    monkeypatch.setattr(restoring, "PAUSE_S", (0.01, 0.02))
    files, index.files = index.files, {}
    async with opened(tmp_path, index) as house:
        running = asyncio.create_task(house.functions.live.restoring.run())
        while house.functions.views.info("needs").state == "packages to be installed":
            await asyncio.sleep(0.01)
        assert house.functions.views.info("needs").state == "packages missing"
        with pytest.raises(InstallFailed, match="are not on this worker any more") as failed:
            await house.functions.live.get("needs")
        assert failed.value.retry_after_s
        index.files = files
        async with asyncio.timeout(30):
            while house.functions.views.info("needs").state != "ready":
                await asyncio.sleep(0.01)
        running.cancel()
        assert [version.record.name for version in house.functions.live.all()] == ["needs"]


async def test_a_call_waits_for_lost_packages_no_longer_than_its_bound(
    tmp_path: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(wheel("lib", "1.0", {"lib.py": ""}))
    async with opened(tmp_path, index) as house:
        await house.deploy("needs", with_packages("lib"))
        await house.registry.publish("needs", 1, "")
    shutil.rmtree(tmp_path / "packages")
    async with opened(tmp_path, index) as house:
        may_go_on = asyncio.Event()
        ensure = house.packages.ensure

        async def slowly(closure: Closure, **kwargs: Any) -> None:
            await may_go_on.wait()
            await ensure(closure, **kwargs)

        monkeypatch.setattr(house.packages, "ensure", slowly)
        house.functions.live.restoring._wait_s = 0.05
        for qualifier in ("", "1"):
            with pytest.raises(BeingRestored, match=r"packages\.restore_wait_s") as refused:
                await house.functions.live.get("needs", qualifier)
            assert refused.value.status == 503 and refused.value.retry_after_s
        may_go_on.set()
        house.functions.live.restoring._wait_s = 30
        assert (await house.functions.live.get("needs")).version.keys


async def test_no_code_is_deleted_when_the_registry_is_lost(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as house:
        digest = (await house.deploy("one", HELLO)).record.digest
    (tmp_path / "registry.sqlite").unlink()
    async with opened(tmp_path, index) as house:
        assert house.functions.live.names() == [] and os.listdir(tmp_path / "code") == [digest]


async def test_a_package_has_its_users_and_cannot_be_removed_under_them(tmp_path: Path, index: PackageIndex) -> None:
    index.add(wheel("lib", "1.0", {"lib.py": ""}))
    async with opened(tmp_path, index) as house:
        (key,) = (await house.deploy("user", with_packages("lib"))).keys
        await house.deploy("other", HELLO)
        assert house.functions.package_users.of(key) == ["user"]
        with pytest.raises(BadRequest, match="user"):
            await house.packages.remove(key, users=house.functions.package_users.of)
        await house.deploy("user", HELLO)
        assert house.functions.package_users.of(key) == []
        await house.packages.remove(key, users=house.functions.package_users.of)


async def test_a_failed_deploy_leaves_the_function_and_the_directory_as_they_were(
    tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index) as house:
        before = await house.deploy("kept", HELLO)
        for files, overrides, error in (
            (with_packages("no-such"), {}, ResolveFailed),
            ({"readme": ""}, {}, BadFunctionConfig),
            (HELLO, {"memory_mb": "much"}, BadFunctionConfig),
            (
                {"f.py": "def f(event): return 1", "x.py": ""},
                {"memory_mb": 2000, "reserved_memory_mb": 2000},
                NoCapacity,
            ),
        ):
            with pytest.raises(error):
                await house.deploy("kept", files, **overrides)
            assert house.functions.live.current("kept") is before
            assert os.listdir(tmp_path / "code") == [before.record.digest]
            assert os.listdir(tmp_path / "tmp") in ([], ["packages"])
        assert house.budget.used == 0


async def test_reserved_memory_is_taken_switched_and_given_back(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as house:
        await house.deploy("vip", HELLO, memory_mb=300, reserved_memory_mb=600)
        assert house.budget.used == 600 * MB
        await house.deploy("vip", {"f.py": "def f(event): return 1", "x.py": ""}, memory_mb=300, reserved_memory_mb=900)
        assert house.budget.used == 900 * MB  # what it held counts as free for it
        with pytest.raises(NoCapacity, match="reserved_memory_mb = 200"):
            await house.deploy("other", HELLO, memory_mb=200, reserved_memory_mb=200)
        assert [version.record.name for version in house.functions.live.all()] == ["vip"]
        await house.functions.remove("vip")
        assert house.budget.used == 0


async def test_a_switch_drops_the_old_version_s_sandboxes_once(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as house:
        old = await house.deploy("f", HELLO)
        new = await house.deploy("f", {"f.py": "def f(event): return 1", "x.py": ""})
        assert house.handlers.dropped == [old.program]
        assert (old.record.version, new.record.version) == (1, 2)
        assert (await house.functions.live.get("f")).version is new


async def test_a_removed_function_s_last_requests_are_waited_for(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as house:
        version = await house.deploy("busy", HELLO)
        function = await house.functions.live.get("busy")
        assert function.admission.try_enter() and house.functions.live.allowances.running() == 1
        removing = asyncio.ensure_future(house.functions.remove("busy"))
        while house.functions.live.all():
            await asyncio.sleep(0)
        with pytest.raises(NoSuchFunction):
            await house.functions.live.get("busy")
        await house.deploy("next", {"f.py": "def f(event): return 1", "x.py": ""})
        assert version.record.digest in os.listdir(tmp_path / "code") and not removing.done()
        function.admission.leave()
        await removing
        assert house.used == [[(await house.functions.live.get("next")).version.view]]
        assert version.record.digest not in os.listdir(tmp_path / "code")


async def test_the_code_of_a_removed_function_stays_while_its_last_request_runs(
    tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index) as house:
        code = house.state / "code" / (await house.deploy("f", HELLO)).record.digest
        admission = house.functions.live.allowances.admission("f")
        assert admission.try_enter()
        await house.registry.delete("f")
        await house.functions.garbage.collect()  # of something else, at the same time
        assert code.exists()
        admission.leave()
        await house.functions.ended("f")
        assert not code.exists()


async def test_draining_ends_when_all_are_done_or_at_its_deadline(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as house:
        await house.deploy("one", HELLO)
        function = await house.functions.live.get("one")
        assert function.admission.try_enter()
        await house.functions.live.allowances.drain(0.01)
        assert house.functions.live.allowances.running() == 1 and function.admission.closed
        draining = asyncio.ensure_future(house.functions.live.allowances.drain(10))
        function.admission.leave()
        await draining
        assert house.functions.live.allowances.running() == 0


async def test_settings_change_without_the_code(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as house:
        first = await house.deploy("one", HELLO | {"g.py": "def g(event): return 2"}, memory_mb=64)
        second = await house.functions.changes.configure("one", {"handler": "g.g", "timeout_s": 9})
        assert house.functions.live.current("one") is second
        assert (second.record.digest, second.record.version) == (first.record.digest, 2)
        assert (second.config.memory_mb, second.config.timeout_s, second.record.handler) == (64, 9, "g:g")
        assert await house.functions.changes.configure("one", {"timeout_s": 9}) is second
        for wrong in ({"timeout_s": 901}, {"handler": "nothing"}):
            with pytest.raises(BadFunctionConfig):
                await house.functions.changes.configure("one", wrong)
        with pytest.raises(NoCapacity):
            await house.functions.changes.configure("one", {"reserved_memory_mb": 2048, "memory_mb": 10240})
        with pytest.raises(NoSuchFunction):
            await house.functions.changes.configure("nobody", {})
        assert house.functions.live.current("one") is second
    async with opened(tmp_path, index) as house:
        assert house.functions.live.current("one").config == second.config


async def test_a_variable_that_is_refused_now_stays_where_it_was_deployed(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as house:
        version = await house.deploy("one", HELLO, env={"A": "1"})
        old = msgspec.structs.replace(version.config, env={"PYTHONHASHSEED": "0", "PYTHONIOENCODING": "none"})
        await house.registry.amend(version.record, old.to_json())
    async with opened(tmp_path, index) as house:
        (again,) = house.functions.live.all()
        assert again.config.env == old.env and "settings" not in protocol.decode_init(again.program.init)
        changed = await house.functions.changes.configure("one", {"timeout_s": 9, "env": {**old.env, "B": "2"}})
        assert changed.config.env["PYTHONHASHSEED"] == "0"
        for wrong in ({"env": {**old.env, "PYTHONHASHSEED": "1"}}, {"secrets": {"PYTHONUTF8": "1"}}):
            with pytest.raises(BadFunctionConfig, match="PYTHON"):
                await house.functions.changes.configure("one", wrong)
        with pytest.raises(BadFunctionConfig, match="PYTHONHASHSEED"):
            await house.deploy("one", HELLO, env=old.env)
        assert house.functions.live.current("one") is changed
        restored = await house.functions.changes.restore(again.record)
        assert restored.config.env == old.env


async def test_deploys_keep_what_commands_have_set_until_they_name_it(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as house:
        await house.deploy("f", {"f.py": "def f(event): return 1", "sockd.toml": 'timeout_s = 4\n[env]\nA = "file"\n'})
        await house.functions.changes.configure("f", {"memory_mb": 256, "timeout_s": 9.0})
        await Environments(house.functions.live, house.functions.changes).change("f", {"A": "command", "B": "2"}, [])
        house.progress.clear()
        await house.deploy("f", {"f.py": "def f(event): return 1", "sockd.toml": "[env]\nA = 'file'\n"})
        config = house.functions.live.current("f").config
        assert (config.memory_mb, config.timeout_s, config.env) == (256, 9.0, {"A": "file", "B": "2"})
        notes = [line for line in house.progress if isinstance(line, Note)]
        assert notes == [
            "kept from sockd config and sockd env: env.B, memory_mb = 256, timeout_s = 9.0; sockd.toml changes what it names",
            "set by sockd config or sockd env, changed by this deploy: env.A",
        ]
        await house.deploy("f", {"f.py": "def f(event): return 2"}, memory_mb=64)
        assert house.functions.live.current("f").config.memory_mb == 64
        assert house.progress[-1].endswith("changed by this deploy: memory_mb from 256 to 64")


async def test_a_web_app_that_was_found_stays_the_handler_when_settings_change(
    tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index) as house:
        for check in ({"check_handler": True}, {"keep_packages": True}):
            await house.deploy("f", {"main.py": "app = print"}, **check)
            assert house.functions.live.current("f").record.handler == "main:app"
        await house.functions.changes.configure("f", {"memory_mb": 256})
        await Environments(house.functions.live, house.functions.changes).change("f", {"A": "1"}, [])
        assert house.functions.live.current("f").record.handler == "main:app"
        await house.functions.changes.configure("f", {"handler": "main:other"})
        assert house.functions.live.current("f").record.handler == "main:other"


async def test_beyond_the_latest_a_function_is_opened_by_its_first_request(
    tmp_path: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(wheel("pkg", "1.0", {"pkg.py": ""}))
    async with opened(tmp_path, index) as house:
        await house.deploy("old", with_packages("pkg==1.0"), run="off", concurrency=7)
        await house.deploy("reserving", HELLO, reserved_memory_mb=64)
        await house.deploy("lost", {"f.py": "def f(event): return 2"})
        lost = house.registry.get("lost").digest
        await house.deploy("new", HELLO)
    shutil.rmtree(tmp_path / "code" / lost)
    monkeypatch.setattr(live_functions, "OPENED_AT_START", 1)
    async with opened(tmp_path, index) as house:
        functions, live = house.functions, house.functions.live
        assert list(live.by_name) == ["new", "reserving"] and live.names() == ["lost", "new", "old", "reserving"]
        assert isinstance(live.restoring.unready["lost"].error, CodeLost)
        assert live.request_settings.run_rules == {"old": "off"}
        assert functions.views.info("old").concurrency == 7 and live.settings("old").concurrency == 7
        (key,) = (each.key for each in house.packages.snapshot())
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
    async with opened(tmp_path, index) as house:
        await house.deploy("old", HELLO)
        await house.functions.changes.configure("old", {"memory_mb": 96})
        await house.deploy("new", HELLO)
    monkeypatch.setattr(live_functions, "OPENED_AT_START", 1)
    async with opened(tmp_path, index) as house:
        assert list(house.functions.live.by_name) == ["new"]
        version = await house.deploy("old", {"f.py": "def f(event): return 2"})
        assert version.config.memory_mb == 96 and version.record.version == 3
        await house.functions.remove("old")
        assert house.functions.live.names() == ["new"]
