"""Requirements that name a git repository, on a worker whose builds may reach this host, where the repository is served."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sockd.starts.packages.distribution import Closure, Source
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.support.servers.package_index import sdist

pytestmark = pytest.mark.root
FILES = {"f.py": "import built\ndef f(event): return built.WHO\n"}


@pytest.fixture(scope="module")
def config() -> str:
    return "[builds]\nreach_host = true\n"


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A repository with a project at the top and one in `sub/`, and its URL: files alone, git's dumb protocol."""
    path = tmp_path / "repository"
    for directory, who in ((path, "top"), (path / "sub", "sub")):
        name, data = sdist("built", "1.0", f"return make(directory, {{'built.py': 'WHO = \"{who}\"'}})")
        (tmp_path / name).write_bytes(data)
        directory.mkdir()
        subprocess.run(
            ["tar", "xzf", name, "--strip-components=1", f"--directory={directory}"], cwd=tmp_path, check=True
        )
    git(path, "init", "--quiet")
    git(path, "add", ".")
    git(path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message=first")
    git(path, "tag", "v1")
    git(path, "update-server-info")
    handler = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *args: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: handler(*args, directory=str(path))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield path, f"http://127.0.0.1:{server.server_port}/.git"
        server.shutdown()
        thread.join()


def git(path: Path, *arguments: str) -> str:
    ran = subprocess.run(["git", *arguments], cwd=path, check=True, capture_output=True, text=True)
    return ran.stdout.strip()


def closure_of(daemon: RunningDaemon, name: str) -> Closure:
    with sqlite3.connect(daemon.state / "registry.sqlite") as database:
        return Closure.from_json(
            database.execute("select closure from versions where name = ? order by version desc", (name,)).fetchone()[0]
        )


def test_a_requirement_is_pinned_to_a_commit(daemon: RunningDaemon, repository: tuple[Path, str]) -> None:
    path, url = repository
    commit = git(path, "rev-parse", "HEAD")
    for requirement, subdirectory, who in (
        (f"built @ git+{url}", "", "top"),
        (f"built @ git+{url}@v1#subdirectory=sub", "sub", "sub"),
        (f"built @ git+{url}@{commit}", "", "top"),
    ):
        daemon.deploy("git", {**FILES, "requirements.txt": requirement}, build=True)
        assert daemon.call("git") == who
        source = closure_of(daemon, "git").distributions[0].source
        assert source == Source(url=url, commit=commit, subdirectory=subdirectory)


def test_a_revision_that_is_not_there_is_refused(daemon: RunningDaemon, repository: tuple[Path, str]) -> None:
    with pytest.raises(DeployFailed) as failure:
        daemon.deploy("none", {**FILES, "requirements.txt": f"built @ git+{repository[1]}@absent"}, build=True)
    assert failure.value.type == "Packages.ResolveFailed" and "absent" in failure.value.message
    assert os.listdir(daemon.state / "tmp" / "packages") == []
