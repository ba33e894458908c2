"""The worker's settings that no other part checks."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from sockd.base.config import Config
from sockd.base.errors import BadConfig


def loaded(path: Path, text: str) -> Config:
    path.write_text(text)
    return Config.load(path)


@pytest.mark.parametrize("megabytes", [0, 128])
def test_startup_data_of_images_may_be_as_large_as_an_object_of_the_store_holds(tmp_path: Path, megabytes: int) -> None:
    config = loaded(tmp_path / "sockd.toml", f"[images]\nprofile_mb = {megabytes}\n")
    assert config.images.profile_mb == megabytes


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("cache_mb = -1", "between 0 and"),
        ("cache_mb = 15", "must be 0, which is no cache, or at least 16"),
        ("cold_starts = 0", "between 1 and"),
        ("max_layers = 0", "between 1 and"),
        ("gc_grace_s = -1", "between 0 and"),
        ("import_timeout_s = nan", "between 1 and"),
        ("fill_mb_s = -1", "between 0 and"),
        ("startup_mb = -1", "between 0 and"),
    ],
)
def test_settings_of_images_that_mean_nothing_are_refused(tmp_path: Path, setting: str, words: str) -> None:
    with pytest.raises(BadConfig, match=f"images.{setting}.*{words}"):
        loaded(tmp_path / "sockd.toml", f"[images]\n{setting}\n")


@pytest.mark.parametrize("endpoint", ["ftp://x", "host:9000", "http://", "http://a b", "https://u@x", "http://x/path"])
def test_an_endpoint_that_is_none_is_refused(tmp_path: Path, endpoint: str) -> None:
    for good in ("", "http://[::1]:9000", "https://s3.example.com/"):
        assert loaded(tmp_path / "sockd.toml", f'[images]\nendpoint = "{good}"\n').images.endpoint == good
    with pytest.raises(BadConfig, match=r"images\.endpoint = .*must be http://HOST"):
        loaded(tmp_path / "sockd.toml", f'[images]\nendpoint = "{endpoint}"\n')


@pytest.mark.parametrize("key", ["insecure_registries", "redirect_hosts"])
@pytest.mark.parametrize("registry", ["http://x", "", "x/team", "x:port", "a b", "x:5000/v2"])
def test_a_registry_that_is_no_host_and_port_is_refused(tmp_path: Path, registry: str, key: str) -> None:
    good = ["registry.internal:5000", "registry", "192.0.2.1:5000", "2001:db8::1", "[2001:db8::1]:5000"]
    found = loaded(tmp_path / "sockd.toml", f"[images]\n{key} = {json.dumps(good)}\n")
    assert list(getattr(found.images, key)) == good
    with pytest.raises(BadConfig, match=rf"images\.{key}: .*must be HOST or HOST:PORT"):
        loaded(tmp_path / "sockd.toml", f"[images]\n{key} = {json.dumps([registry])}\n")


@pytest.mark.parametrize("mirror", ["http://x", "", "x/UPPER", "x y", "x/../y z"])
def test_a_mirror_that_is_no_host_and_path_is_refused(tmp_path: Path, mirror: str) -> None:
    good = {"docker.io": "mirror.internal:5000/hub/proxy", "ghcr.io": "192.0.2.1:5000"}
    text = "".join(f'"{host}" = "{where}"\n' for host, where in good.items())
    assert loaded(tmp_path / "sockd.toml", f"[images.mirrors]\n{text}").images.mirrors == good
    with pytest.raises(BadConfig, match=r"images\.mirrors: .*must be a registry and its mirror, HOST\[:PORT\]"):
        loaded(tmp_path / "sockd.toml", f'[images.mirrors]\n"docker.io" = "{mirror}"\n')


def test_a_worker_may_have_no_cache_of_chunks_or_a_small_one(tmp_path: Path) -> None:
    for megabytes in (0, 16):
        config = loaded(tmp_path / "sockd.toml", f"[images]\ncache_mb = {megabytes}\n")
        assert config.images.cache_mb == megabytes


def test_by_default_as_many_images_as_start_at_once_have_memory_for_startup_data() -> None:
    images = Config().images
    assert images.startup_mb >= images.cold_starts * images.profile_mb


@pytest.mark.parametrize("count", [0, 97])
def test_more_zygotes_than_there_are_blocks_of_uids_for_are_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(BadConfig, match=f"zygote.max_nodes = {count}: must be between 1 and 96"):
        loaded(tmp_path / "sockd.toml", f"[zygote]\nmax_nodes = {count}\n")
    assert loaded(tmp_path / "sockd.toml", "[zygote]\nmax_nodes = 96\n").zygote.max_nodes == 96


@pytest.mark.parametrize("megabytes", [-1, 129])
def test_a_bound_of_startup_data_that_cannot_be_kept_is_refused(tmp_path: Path, megabytes: int) -> None:
    with pytest.raises(BadConfig, match=f"images.profile_mb = {megabytes}: must be between 0 and 128"):
        loaded(tmp_path / "sockd.toml", f"[images]\nprofile_mb = {megabytes}\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[lambda_api]\nkys = true\n", "[lambda_api] unknown key 'kys'; did you mean 'keys'?"),
        ("[image]\n", "unknown key 'image'; did you mean 'images'?"),
        ("[page]\nzzzz = 1\n", "[page] unknown key 'zzzz'; the keys are "),
    ],
)
def test_an_unknown_setting_is_reported_with_the_one_that_is_meant(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadConfig) as caught:
        loaded(tmp_path / "sockd.toml", text)
    assert f"sockd.toml: {words}" in caught.value.message


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('[group]\nname = "g"\n', "group.name needs a database .*postgres.dsn"),
        ('[group]\nname = "a b"\n[postgres]\ndsn = "postgresql://x"\n', "group.name = 'a b': .*1 to 64 of"),
        (
            '[group]\nname = "g"\n[postgres]\ndsn = "postgresql://x"\nworker = "a:b"\n',
            "postgres.worker = 'a:b': .*1 to 64",
        ),
        ("[group]\nheartbeat_s = 0\n", "group.heartbeat_s = 0.0: must be between 0.1 and 60"),
        ("[group]\nheartbeat_s = nan\n", "group.heartbeat_s = nan: must be between"),
        ("[group]\nsilent_s = 8\n", "group.silent_s = 8.0: must be 3 times group.heartbeat_s at least, 9"),
        ("[group]\ndrain_notice_s = -1\n", "group.drain_notice_s = -1.0: must be between 0 and 60"),
    ],
)
def test_settings_of_a_group_that_mean_nothing_are_refused(tmp_path: Path, settings: str, words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        loaded(tmp_path / "sockd.toml", settings)


def test_a_worker_has_its_hosts_name_in_a_group_and_is_main_alone(tmp_path: Path) -> None:
    file = tmp_path / "sockd.toml"
    file.write_text('[postgres]\ndsn = "postgresql://file"\n')
    alone, joined = Config.load(file), Config.load(file, join="postgresql://option", group="g")
    assert (alone.worker_name, joined.worker_name) == ("main", socket.gethostname())
    assert (joined.postgres.dsn, joined.group.name) == ("postgresql://option", "g")
    assert Config.load(file, group="g", name="w1").worker_name == "w1"
