"""Functions below the APIs: what a deploy records, who uses what, what may be reserved, what a change of settings keeps."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sockd.base.errors import (
    BadFunctionConfig,
    BadRequest,
    NoCapacity,
    NoSuchFunction,
    ResolveFailed,
)
from sockd.base.notes import Note
from sockd.functions.deploys.deploy_check import Checked
from sockd.functions.environments import Environments
from sockd_zygote import protocol
from tests.functions.harness import HELLO, MB, opened, with_packages
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = pytest.mark.anyio


async def test_a_deployed_function_is_found_and_an_unknown_one_is_not(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as harness:
        version = await harness.deploy("hello", HELLO, memory_mb=64)
        assert (await harness.functions.live.get("hello")).version is version
        assert harness.functions.live.current("hello") is version and harness.functions.live.all() == [version]
        assert version.info().memory_mb == 64 and version.record.handler == "f:f"
        for ask in (harness.functions.live.get("nobody"), harness.functions.remove("nobody")):
            with pytest.raises(NoSuchFunction):
                await ask
        with pytest.raises(NoSuchFunction):
            harness.functions.live.current("nobody")
        with pytest.raises(BadFunctionConfig):
            await harness.deploy("no/name".replace("/", "."), HELLO)


@pytest.mark.parametrize(("init_ms", "snapshot", "learns"), [(9.9, False, False), (10, False, True), (10, True, False)])
async def test_a_check_that_took_long_enough_leads_to_a_recording(
    tmp_path: Path, index: PackageIndex, init_ms: float, snapshot: bool, learns: bool
) -> None:
    async with opened(tmp_path, index) as harness:
        deployed = await harness.deploy("checked", HELLO, snapshot=snapshot)
        function = await harness.functions.live.get("checked")
        expected: list[str] = []
        verifier: Any = SimpleNamespace(
            expect=lambda view, program, version: expected.append(version), forget=lambda view: None
        )
        function.caches = replace(function.caches, verifier=verifier)
        await harness.functions.switching.put(deployed.record, Checked(init_ns=int(init_ms * 1e6)), anew=True)
        assert expected == [function.version.id] * learns


async def test_a_package_has_its_users_and_cannot_be_removed_under_them(tmp_path: Path, index: PackageIndex) -> None:
    index.add(wheel("lib", "1.0", {"lib.py": ""}))
    async with opened(tmp_path, index) as harness:
        (key,) = (await harness.deploy("user", with_packages("lib"))).keys
        await harness.deploy("other", HELLO)
        assert harness.functions.package_users.of(key) == ["user"]
        with pytest.raises(BadRequest, match="user"):
            await harness.packages.remove(key, users=harness.functions.package_users.of)
        await harness.deploy("user", HELLO)
        assert harness.functions.package_users.of(key) == []
        await harness.packages.remove(key, users=harness.functions.package_users.of)


async def test_a_failed_deploy_leaves_the_function_and_the_directory_as_they_were(
    tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index) as harness:
        before = await harness.deploy("kept", HELLO)
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
                await harness.deploy("kept", files, **overrides)
            assert harness.functions.live.current("kept") is before
            assert os.listdir(tmp_path / "code") == [before.record.digest]
            assert os.listdir(tmp_path / "tmp") in ([], ["packages"])
        assert harness.budget.used == 0


async def test_reserved_memory_is_taken_switched_and_given_back(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as harness:
        await harness.deploy("vip", HELLO, memory_mb=300, reserved_memory_mb=600)
        assert harness.budget.used == 600 * MB
        await harness.deploy(
            "vip", {"f.py": "def f(event): return 1", "x.py": ""}, memory_mb=300, reserved_memory_mb=900
        )
        assert harness.budget.used == 900 * MB  # what it held counts as free for it
        with pytest.raises(NoCapacity, match="reserved_memory_mb = 200"):
            await harness.deploy("other", HELLO, memory_mb=200, reserved_memory_mb=200)
        assert [version.record.name for version in harness.functions.live.all()] == ["vip"]
        await harness.functions.remove("vip")
        assert harness.budget.used == 0


async def test_a_switch_drops_the_old_version_s_sandboxes_once(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as harness:
        old = await harness.deploy("f", HELLO)
        new = await harness.deploy("f", {"f.py": "def f(event): return 1", "x.py": ""})
        assert harness.handlers.dropped == [old.program]
        assert (old.record.version, new.record.version) == (1, 2)
        assert (await harness.functions.live.get("f")).version is new


async def test_a_removed_function_s_last_requests_are_waited_for(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as harness:
        version = await harness.deploy("busy", HELLO)
        function = await harness.functions.live.get("busy")
        assert function.admission.try_enter() and harness.functions.live.allowances.running() == 1
        removing = asyncio.ensure_future(harness.functions.remove("busy"))
        while harness.functions.live.all():
            await asyncio.sleep(0)
        with pytest.raises(NoSuchFunction):
            await harness.functions.live.get("busy")
        await harness.deploy("next", {"f.py": "def f(event): return 1", "x.py": ""})
        assert version.record.digest in os.listdir(tmp_path / "code") and not removing.done()
        function.admission.leave()
        await removing
        assert harness.used == [[(await harness.functions.live.get("next")).version.view]]
        assert version.record.digest not in os.listdir(tmp_path / "code")


async def test_the_code_of_a_removed_function_stays_while_its_last_request_runs(
    tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index) as harness:
        code = harness.state / "code" / (await harness.deploy("f", HELLO)).record.digest
        admission = harness.functions.live.allowances.admission("f")
        assert admission.try_enter()
        await harness.registry.delete("f")
        await harness.functions.garbage.collect()  # of something else, at the same time
        assert code.exists()
        admission.leave()
        await harness.functions.ended("f")
        assert not code.exists()


async def test_draining_ends_when_all_are_done_or_at_its_deadline(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as harness:
        await harness.deploy("one", HELLO)
        function = await harness.functions.live.get("one")
        assert function.admission.try_enter()
        await harness.functions.live.allowances.drain(0.01)
        assert harness.functions.live.allowances.running() == 1 and function.admission.closed
        draining = asyncio.ensure_future(harness.functions.live.allowances.drain(10))
        function.admission.leave()
        await draining
        assert harness.functions.live.allowances.running() == 0


async def test_settings_change_without_the_code(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as harness:
        first = await harness.deploy("one", HELLO | {"g.py": "def g(event): return 2"}, memory_mb=64)
        second = await harness.functions.changes.configure("one", {"handler": "g.g", "timeout_s": 9})
        assert harness.functions.live.current("one") is second
        assert (second.record.digest, second.record.version) == (first.record.digest, 2)
        assert (second.config.memory_mb, second.config.timeout_s, second.record.handler) == (64, 9, "g:g")
        assert await harness.functions.changes.configure("one", {"timeout_s": 9}) is second
        for wrong in ({"timeout_s": 901}, {"handler": "nothing"}):
            with pytest.raises(BadFunctionConfig):
                await harness.functions.changes.configure("one", wrong)
        with pytest.raises(NoCapacity):
            await harness.functions.changes.configure("one", {"reserved_memory_mb": 2048, "memory_mb": 10240})
        with pytest.raises(NoSuchFunction):
            await harness.functions.changes.configure("nobody", {})
        assert harness.functions.live.current("one") is second
    async with opened(tmp_path, index) as harness:
        assert harness.functions.live.current("one").config == second.config


async def test_a_variable_that_is_refused_now_stays_where_it_was_deployed(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as harness:
        version = await harness.deploy("one", HELLO, env={"A": "1"})
        old = msgspec.structs.replace(version.config, env={"PYTHONHASHSEED": "0", "PYTHONIOENCODING": "none"})
        await harness.registry.amend(version.record, old.to_json())
    async with opened(tmp_path, index) as harness:
        (again,) = harness.functions.live.all()
        assert again.config.env == old.env and "settings" not in protocol.decode_init(again.program.init)
        changed = await harness.functions.changes.configure("one", {"timeout_s": 9, "env": {**old.env, "B": "2"}})
        assert changed.config.env["PYTHONHASHSEED"] == "0"
        for wrong in ({"env": {**old.env, "PYTHONHASHSEED": "1"}}, {"secrets": {"PYTHONUTF8": "1"}}):
            with pytest.raises(BadFunctionConfig, match="PYTHON"):
                await harness.functions.changes.configure("one", wrong)
        with pytest.raises(BadFunctionConfig, match="PYTHONHASHSEED"):
            await harness.deploy("one", HELLO, env=old.env)
        assert harness.functions.live.current("one") is changed
        restored = await harness.functions.changes.restore(again.record)
        assert restored.config.env == old.env


async def test_deploys_keep_what_commands_have_set_until_they_name_it(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as harness:
        await harness.deploy(
            "f", {"f.py": "def f(event): return 1", "sockd.toml": 'timeout_s = 4\n[env]\nA = "file"\n'}
        )
        await harness.functions.changes.configure("f", {"memory_mb": 256, "timeout_s": 9.0})
        await Environments(harness.functions.live, harness.functions.changes).change(
            "f", {"A": "command", "B": "2"}, []
        )
        harness.progress.clear()
        await harness.deploy("f", {"f.py": "def f(event): return 1", "sockd.toml": "[env]\nA = 'file'\n"})
        config = harness.functions.live.current("f").config
        assert (config.memory_mb, config.timeout_s, config.env) == (256, 9.0, {"A": "file", "B": "2"})
        notes = [line for line in harness.progress if isinstance(line, Note)]
        assert notes == [
            "kept from sockd config and sockd env: env.B, memory_mb = 256, timeout_s = 9.0; sockd.toml changes what it names",
            "set by sockd config or sockd env, changed by this deploy: env.A",
        ]
        await harness.deploy("f", {"f.py": "def f(event): return 2"}, memory_mb=64)
        assert harness.functions.live.current("f").config.memory_mb == 64
        assert harness.progress[-1].endswith("changed by this deploy: memory_mb from 256 to 64")


async def test_a_web_app_that_was_found_stays_the_handler_when_settings_change(
    tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index) as harness:
        for check in ({"check_handler": True}, {"keep_packages": True}):
            await harness.deploy("f", {"main.py": "app = print"}, **check)
            assert harness.functions.live.current("f").record.handler == "main:app"
        await harness.functions.changes.configure("f", {"memory_mb": 256})
        await Environments(harness.functions.live, harness.functions.changes).change("f", {"A": "1"}, [])
        assert harness.functions.live.current("f").record.handler == "main:app"
        await harness.functions.changes.configure("f", {"handler": "main:other"})
        assert harness.functions.live.current("f").record.handler == "main:other"
