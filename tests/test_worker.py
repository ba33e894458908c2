"""The worker's start on hosts that refuse it something."""

from __future__ import annotations

import importlib.util
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sockd.base.config import MB, Config, GroupConfig, ImagesConfig, PostgresConfig, SandboxConfig
from sockd.base.errors import BadConfig, NoCapacity, SandboxFailed
from sockd.isolation.sandbox.memory_budget import host_memory_bytes
from sockd.worker.builders.image_parts import check_name, docker_config, store_settings
from sockd.worker.builders.isolation_parts import budget_bytes
from sockd.worker.builders.starts_parts import try_sandbox
from sockd.worker.process_setup import FDS_AT_ONCE, affordable_idle, compile_ours
from sockd_zygote.handlers.programs import service

pytestmark = pytest.mark.anyio


class FakeTree:
    """A root Zygote that answers a fork in one way."""

    root = SimpleNamespace(zygote=None)

    def __init__(self, outcome: Exception | None) -> None:
        self._outcome = outcome
        self.destroyed = 0
        self.children = self

    async def fork_spare(self, zygote: Any) -> Any:
        if self._outcome is not None:
            raise self._outcome
        return self

    def destroy(self) -> None:
        self.destroyed += 1


@pytest.mark.parametrize("store", ["chunks", "./chunks", "gs://bucket", "~/chunks", ""])
async def test_a_store_that_is_neither_s3_nor_a_path_is_refused(store: str) -> None:
    with pytest.raises(BadConfig, match="absolute path"):
        store_settings(ImagesConfig(store=store), Path("/state"))


@pytest.mark.parametrize("store", ["s3://b/p", "s3://", "s3://a_b/p", "s3://-ab/p"])
async def test_a_bucket_that_no_service_can_have_is_refused(store: str) -> None:
    with pytest.raises(
        BadConfig, match=r"images\.store = 's3://.*must be s3://BUCKET/PREFIX, with a bucket's name of 3 to 63"
    ):
        store_settings(ImagesConfig(store=store), Path("/state"))


async def test_a_store_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "mount" / "store"
    with pytest.raises(BadConfig, match=rf"no such directory; mount its file system .* mkdir {path}"):
        store_settings(ImagesConfig(store=str(path)), tmp_path)
    assert not path.parent.exists()


async def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadConfig, match=r"images\.store = .*file': is a file; it must be .* a directory"):
        store_settings(ImagesConfig(store=str(tmp_path / "file")), tmp_path)
    assert store_settings(ImagesConfig(store=str(tmp_path)), tmp_path).url == str(tmp_path)


async def test_credentials_of_registries_that_are_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert docker_config(ImagesConfig()).name == "config.json"
    assert docker_config(ImagesConfig(docker_config=str(tmp_path / "config.json"))) == tmp_path / "config.json"
    refused = {
        str(tmp_path / "missing"): "no such file",
        str(tmp_path): "no such file",
        "config.json": "must be an absolute path",
    }
    for path, why in refused.items():
        with pytest.raises(BadConfig, match=rf"images\.docker_config = .*: .*{why}"):
            docker_config(ImagesConfig(docker_config=path))


def of_a_group(cache_node_memory_mb: int, *, nodes: tuple[str, ...] = (), memory_mb: int | None = None) -> Config:
    """Return the settings of a worker of a group."""
    return Config(
        postgres=PostgresConfig(dsn="postgresql://db/sockd"),
        group=GroupConfig(name="g", cache_node_memory_mb=cache_node_memory_mb),
        images=ImagesConfig(
            store="s3://bucket", key_file="/key", nodes=nodes, nodes_token_file="/token" if nodes else None
        ),
        sandbox=SandboxConfig(memory_mb=memory_mb),
    )


async def test_functions_have_what_the_cache_node_leaves_them() -> None:
    alone = budget_bytes(Config())
    assert budget_bytes(of_a_group(300)) == alone - 300 * MB
    assert budget_bytes(of_a_group(300, nodes=("10.0.0.1:7100",))) == budget_bytes(of_a_group(0)) == alone
    assert budget_bytes(of_a_group(300, memory_mb=200)) == 200 * MB


async def test_a_cache_node_that_leaves_functions_nothing_is_refused() -> None:
    most_mb = host_memory_bytes() * 3 // 4 // MB
    with pytest.raises(
        BadConfig, match=rf"cache_node_memory_mb = {most_mb + 1} leaves functions nothing of the {most_mb} MB"
    ):
        budget_bytes(of_a_group(most_mb + 1))


@pytest.mark.parametrize("name", ["", "a b", "../x", ".x", "é", "x" * 201])
async def test_names_that_no_object_can_have_are_refused(name: str) -> None:
    check_name("tenant", "host-1.example_2")
    with pytest.raises(BadConfig, match=r"images\.tenant = .* must be"):
        check_name("tenant", name)


async def test_a_host_that_lets_us_make_a_sandbox_keeps_none_of_it() -> None:
    tree: Any = FakeTree(None)
    await try_sandbox(tree)
    assert tree.destroyed == 1


@pytest.mark.parametrize("error", [SandboxFailed("clone: Permission denied"), OSError(1, "clone"), TimeoutError()])
async def test_a_host_that_refuses_a_sandbox_is_reported_at_the_start(error: Exception) -> None:
    tree: Any = FakeTree(error)
    with pytest.raises(SandboxFailed, match="sockd doctor") as caught:
        await try_sandbox(tree)
    assert caught.value.__cause__ is error


async def test_a_worker_with_little_memory_starts_all_the_same() -> None:
    tree: Any = FakeTree(NoCapacity("no memory for a spare"))
    await try_sandbox(tree)


@pytest.mark.parametrize(("open_files", "idle"), [(1 << 20, 2000), (20_000, 2000), (4096, 409), (600, 43), (64, 1)])
async def test_idle_sandboxes_leave_descriptors_to_the_apis(
    monkeypatch: pytest.MonkeyPatch, open_files: int, idle: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (open_files, open_files))
    assert affordable_idle(2000) == idle
    assert affordable_idle(0) == 0


def test_the_table_of_descriptors_need_not_grow_when_a_crowd_comes() -> None:
    code = "from sockd.worker.process_setup import raise_open_files; raise_open_files(); print(open('/proc/self/status').read())"
    status = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    (size,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("FDSize")]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert size >= min(hard, FDS_AT_ONCE)


def test_what_a_sandbox_imports_of_ours_is_compiled_when_the_worker_starts() -> None:
    compiled = Path(importlib.util.cache_from_source(str(service.__file__)))
    compiled.unlink(missing_ok=True)
    compile_ours()
    assert compiled.is_file()
