"""A worker of whose state directory a part was lost: it starts, shows every function that is recorded, and says what is lost.

One state directory with a bit of everything is made; each case starts a worker on a copy without one entry."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.daemon.aws_client import KEYS, client_of
from tests.daemon.images.test_images import CONFIG, app, deploy, upload
from tests.daemon.running import Answer, RunningDaemon
from tests.initscripts.guests import module
from tests.support.images.image_layouts import python_files, write_layout
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

ECHO = "def f(event): return event"
FUNCTIONS = {
    "environment": "hush",
    "image": "1",
    "packages": 5,
    "plain": 1,
    "published": 1,
    "scripted": 1,
    "url": 1,
}
"""Each function, with what a call of it answers."""


def config(index: PackageIndex) -> str:
    return f'[packages]\nindex_url = "{index.url}"\n{KEYS}'


def filled(path: Path, index: PackageIndex) -> Path:
    """The state directory of a worker with functions that use all parts of it; stopped."""
    index.add(wheel("lost", "1.0", {"lost.py": "N = 5"}))
    write_layout(path / "layout", [python_files().tar(), app("1")], CONFIG)
    daemon = RunningDaemon.start(path / "state", config(index))
    try:
        for name in ("plain", "published", "url"):
            daemon.deploy(name, "def f(event): return 1")
        daemon.deploy("packages", {"f.py": "import lost\ndef f(event): return lost.N", "requirements.txt": "lost"})
        daemon.deploy("environment", "import os\ndef f(event): return os.environ['A']", env={"A": "hush"})
        script = module("")
        daemon.deploy_with_initscript("scripted", {"f.py": "def f(event): return 1"}, script, initscript={})
        deploy(daemon, "image", upload(daemon, path / "layout"), timeout_s=30)
        for name, answer in FUNCTIONS.items():
            assert called(daemon, name) == answer, name
        for method, where, body in (
            ("POST", "/functions/published/versions", {}),
            ("PUT", "/functions/published/aliases/live", {"version": "1"}),
            ("PUT", "/functions/url/url", {"auth": "NONE"}),
            ("PUT", "/schedules/nightly", {"function": "plain", "expression": "rate(1 day)"}),
            ("POST", "/keys", {"name": "ci", "may": ["read"]}),
        ):
            answered = daemon.manage(method, where, json.dumps(body))
            assert answered.status == 200, (where, answered)
        daemon.deploy("later", ECHO, concurrency=0)
        assert daemon.run("later", 1, x_amz_invocation_type="Event").status == 202
        assert daemon.terminate() == 0, daemon.lines
    finally:
        daemon.close()
    return path / "state"


def called(daemon: RunningDaemon, name: str) -> Any:
    answer = daemon.call(name)
    return answer["version"] if isinstance(answer, dict) else answer


VIEWS = ("", "/env", "/logs", "/imports", "/versions", "/urls")
"""The views of one function, behind its path."""
WORKER_VIEWS = (
    *(
        "/functions",
        "/status",
        "/tree",
        "/packages",
        "/images",
        "/events",
        "/schedules",
        "/keys",
        "/secrets",
        "/live",
        "/traces",
    ),
)
TABS = ("", "?tab=failures", "?tab=log", "?tab=settings")
PAGES = ("/", "/failures", "/queue", "/history", *(f"/functions/{name}{tab}" for name in FUNCTIONS for tab in TABS))
NO_CODE = {name: ("Code.Lost", "sockd deploy") for name in (*FUNCTIONS, "later") if name != "image"}
LOST: dict[str, dict[str, tuple[str, str]]] = {
    "agent": {},
    "agent/l1": {},
    "agent-root": {},
    "base": {},
    "chunks": {},
    "chunks agent": {"image": ("Images.ChunkMissing", "deploy that again")},
    "chunks/store/objects": {},
    "chunks/store/roots": {},
    "code": NO_CODE,
    "engine": {},
    "events.sqlite": {},
    "handover.sock": {},
    "history.json": {},
    "images": {"image": ("Images.Lost", "sockd images add")},
    "images.key": {"image": ("Secrets.Locked", "give the worker the key")},
    "initscripts": {},
    "keys.json": {},
    "keys.made": {},
    "learned.json": {},
    "lock": {},
    "logs": {},
    "mounted": {},
    "pythons": {},
    "recordings": {},
    "registry.sqlite": {},
    "reserve": {},
    "resolver": {},
    "run.sock": {},
    "secret.key": {"environment": ("Secrets.Locked", "put the right key back")},
    "sockd.sock": {},
    "store": {},
    "store/packages": {},
    "store/packages/.meta": {},
    "store/uv-cache": {},
    "templates.json": {},
    "tmp": {},
}
"""What is deleted, and the functions that cannot run without it, with the error of their calls and what it says to do."""
SEEN_BY_CALLS = ("chunks agent", "images.key")
"""What only a call finds missing."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, index: PackageIndex) -> Path:
    return filled(tmp_path_factory.mktemp("template"), index)


def test_all_parts_are_deleted_in_turn(template: Path) -> None:
    parts = {part for part in LOST if "/" not in part and " " not in part}
    not_always = {"recordings", "mounted"}  # comes with the first of them; is for images on older kernels
    assert parts == {path.name for path in template.iterdir()} | not_always


@pytest.mark.parametrize("part", LOST)
def test_a_worker_without_a_part_of_its_state_shows_all_functions_and_what_is_lost(
    part: str, template: Path, tmp_path: Path, index: PackageIndex
) -> None:
    state = tmp_path / "state"
    shutil.copytree(template, state, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
    for each in part.split():
        delete(state / each)
    daemon = RunningDaemon.start(state, config(index))
    try:
        recorded = [] if part == "registry.sqlite" else sorted([*FUNCTIONS, "later"])
        assert [each["name"] for each in daemon.manage("GET", "/functions").json] == recorded
        see_all(daemon, recorded)
        for name in FUNCTIONS if recorded else ():
            if name not in LOST[part]:
                assert called(daemon, name) == FUNCTIONS[name], name
                continue
            kind, remedy = LOST[part][name]
            for qualified in (name, f"{name}:1") if name == "published" else (name,):
                answer = daemon.run(qualified, 1)
                assert (answer.status, answer.json["errorType"]) == (503, kind), answer
                assert remedy in answer.json["errorMessage"]
        see_all(daemon, recorded)
        states = {each["name"]: each["state"] for each in daemon.manage("GET", "/functions").json}
        seen = set() if part in SEEN_BY_CALLS else set(LOST[part])
        assert {name for name, words in states.items() if words != "ready"} == seen
        for name in seen if part != "secret.key" else ():
            assert aws_state(daemon, name) == "Inactive"
        for name in seen:
            assert states[name].encode() in daemon.request("GET", f"/functions/{name}").body
        warned = any("restore a backup before you deploy" in line for line in daemon.lines)
        assert warned == (part == "registry.sqlite") and (state / "code").exists()
        named = [line for line in daemon.lines if " was lost: " in line]
        assert len(named) == (part in ("events.sqlite", "keys.json")), named
        assert all(part in line and "sockd restore" in line for line in named)
        if warned:
            assert len(list((state / "code").iterdir())) > 1, "what a backup of the registry needs is kept"
        assert daemon.terminate() == 0, daemon.lines
        assert not any("Traceback" in line for line in daemon.lines), "\n".join(daemon.lines)
    finally:
        daemon.close()


def test_a_worker_says_that_an_emptied_file_of_events_was_lost(
    template: Path, tmp_path: Path, index: PackageIndex
) -> None:
    state = tmp_path / "state"
    shutil.copytree(template, state, symlinks=True, ignore=shutil.ignore_patterns("*.sock", "events.sqlite-*"))
    (state / "events.sqlite").write_bytes(b"")
    for warnings in (1, 0):
        daemon = RunningDaemon.start(state, config(index))
        try:
            assert daemon.terminate() == 0
            assert sum("events.sqlite was lost: " in line for line in daemon.lines) == warnings
        finally:
            daemon.close()


def aws_state(daemon: RunningDaemon, name: str) -> str:
    client = client_of(boto3.Session(region_name="eu-central-1"), daemon)
    try:
        return str(client.get_function_configuration(FunctionName=name)["State"])
    finally:
        client.close()


def delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def see_all(daemon: RunningDaemon, names: list[str]) -> None:
    """Look at each view; none fails without a type."""
    for path in (*WORKER_VIEWS, *(f"/functions/{name}{view}" for name in names for view in VIEWS)):
        expect_typed(path, daemon.manage("GET", path))
    for path in PAGES:
        answer = daemon.request("GET", path)
        assert answer.status in ((200,) if names else (200, 404)), (path, answer)
    client = client_of(boto3.Session(region_name="eu-central-1"), daemon)
    try:
        assert sorted(each["FunctionName"] for each in client.list_functions()["Functions"]) == names
    finally:
        client.close()


def expect_typed(path: str, answer: Answer) -> None:
    if answer.status != 200:
        assert answer.json["errorType"] not in ("ServiceException", "InternalError"), (path, answer)
        assert "internal error" not in answer.json["errorMessage"], (path, answer)
