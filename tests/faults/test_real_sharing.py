"""Real packages: what a function's modules are in a start of its own, and after the worker has learned its packages from others.

`COMBINATIONS` is the list; a line more is a combination more. Packages come from the index that uv is configured with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.daemon.running import DeployFailed, RunningDaemon
from tests.faults.sharing.catalogue import Entry
from tests.faults.sharing.comparing import OWN_START, SURE, difference
from tests.support.cases import Happened, case

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

SETTINGS: dict[str, Any] = {"memory_mb": 768, "timeout_s": 60, "init_timeout_s": 60}
LEARN_DEADLINE_S = 60.0
FRESH = {"x-sockd-fresh": "1"}


@dataclass(frozen=True)
class Combination:
    """What a first function has, from which the worker learns, and what a second has besides."""

    imports: str
    learned: str
    besides: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    shared: bool = False
    """Whether the second is to be served by a Zygote with the first one's packages all the same."""


COMBINATIONS = {
    "requests, PySocks": Combination("requests", "requests", "requests[socks]"),
    "requests, click": Combination("requests", "requests", "click", shared=True),
    "fastapi, multipart": Combination("fastapi", "fastapi", "python-multipart orjson"),
    "pandas, pyarrow": Combination("pandas", "pandas", "pyarrow"),
    "httpx, brotli": Combination("httpx", "httpx", "brotli"),
    "beautifulsoup4, lxml": Combination("bs4", "beautifulsoup4", "lxml"),
    "redis, hiredis": Combination("redis", "redis", "hiredis"),
    "jinja2, babel": Combination("jinja2", "jinja2", "babel", shared=True),
    "numpy, threads": Combination("numpy", "numpy", env={"OPENBLAS_NUM_THREADS": "2"}),
    "numpy, another variable": Combination("numpy", "numpy", env={"MY_SETTING": "2"}, shared=True),
    "matplotlib, backend": Combination("matplotlib.pyplot", "matplotlib", env={"MPLBACKEND": "svg"}),
    "openai, version": Combination("openai", "openai", env={"OPENAI_API_VERSION": "2024-06-01"}),
    "huggingface_hub, offline": Combination(
        "huggingface_hub.constants", "huggingface_hub", env={"HF_HUB_OFFLINE": "1"}
    ),
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One for both kinds of start: another has another hash secret, and so other orders of sets."""
    daemon = RunningDaemon.start(tmp_path_factory.mktemp("sharing") / "state")
    try:
        yield daemon
        assert daemon.terminate() == 0, daemon.lines
    finally:
        daemon.close()


@case(
    "P4",
    "learn a real package, then deploy it with an optional dependency or a variable that it reads, once from a "
    "Zygote, if one may serve it, and once from the root Zygote",
    expect="the modules of both are the same, name by name",
    default=False,
)
@pytest.mark.parametrize("which", COMBINATIONS)
def test_a_learned_start_is_as_one_of_its_own(worker: RunningDaemon, which: str, happened: Happened) -> None:
    combination = COMBINATIONS[which]
    name = which.split(",")[0].replace("_", "-") + f"-{list(COMBINATIONS).index(which)}"
    first = Entry(f"first-{name}", (combination.learned,), (combination.imports,))
    requirements = (combination.learned, *combination.besides.split())
    second = replace(first, name=name, requirements=requirements, env=dict(combination.env))
    own_start = replace(second, name=f"{name}-own", env={**second.env, **OWN_START})
    try:
        learn(worker, first)
        for entry in (second, own_start):
            worker.deploy(entry.name, entry.files(), **SETTINGS)
    except DeployFailed as error:
        if error.type == "Packages.Failed":
            pytest.skip(f"no package index can be reached: {error.message}")
        raise
    worker.run(name, {})
    worker.wait_verified(LEARN_DEADLINE_S)
    answer = worker.run(name, {}, **FRESH)
    learned = answer.json
    alone = worker.run(own_start.name, {}, **FRESH).json["modules"]
    # What others import of these packages may be there besides, and has its effects: own starts have it, too.
    besides = {"also": [name for name in learned["modules"] if name not in alone], "pids": learned["pids"]}
    own = [worker.run(own_start.name, besides, **FRESH).json for _ in range(SURE)]
    assert list(difference(own, learned)) == []
    passed_over = worker.manage("GET", f"/traces/{answer.headers['x-amzn-requestid']}").json["passed_over"]
    count = sum(map(len, learned["modules"].values()))
    happened(f"{count} names alike; {passed_over or 'shared'}")
    assert (not passed_over) == combination.shared


def learn(daemon: RunningDaemon, entry: Entry) -> None:
    """Have a Zygote of a function's requirement and all that this requires."""
    daemon.deploy(entry.name, entry.files(), **SETTINGS)
    daemon.run(entry.name, {})
    packages = {
        package["package"] for package in daemon.manage("GET", f"/functions/{entry.name}/imports").json["packages"]
    }
    daemon.when(
        lambda: [node for node in daemon.nodes() if node["packages"] and node["packages"] <= packages],
        deadline_s=LEARN_DEADLINE_S,
    )
