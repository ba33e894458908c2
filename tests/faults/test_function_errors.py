"""Functions that fail by themselves: each answer is a typed error that names the cause, and the next request is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.faults import failing
from tests.support.cases import Happened, case
from tests.support.private_worker import Answer, PrivateWorker
from tests.support.servers.package_index import wheel
from tests.support.threads import at_once

pytestmark = pytest.mark.root


def answers(worker: PrivateWorker, codes: Mapping[str, str | bytes], **settings: Any) -> dict[str, list[Answer]]:
    """Deploy each code, invoke it twice, and what came; several at a time."""
    names = list(codes)

    def try_one(number: int) -> list[Answer]:
        name = f"fails-{number}"
        worker.deploy(name, {"f.py": codes[names[number]]}, **settings)
        return [worker.invoke(name, 1), worker.invoke(name, 1)]

    return dict(zip(names, at_once(len(names), try_one), strict=True))


def check(
    worker: PrivateWorker, table: Mapping[str, tuple[str | bytes, str, str]], status: int, **settings: Any
) -> str:
    """Every row of a table (code, error type, words) answers as it says, twice; in words."""
    came = answers(worker, {what: row[0] for what, row in table.items()}, **settings)
    for what, (_, kind, words) in table.items():
        for answer in came[what]:
            assert (answer.status, answer.error) == (status, kind), (what, answer.body)
            assert words in answer.json["errorMessage"], (what, answer.json["errorMessage"][:500])
            assert str(worker.daemon.state) not in answer.body.decode()
    return ", ".join(f"{what}: {came[what][0].error}" for what in table)


@case("F1", "exceptions, odd ones among them", expect="500 with the exception's own type, message and frames")
def test_exceptions(worker: PrivateWorker, happened: Happened) -> None:
    happened(check(worker, failing.RAISING, 500, memory_mb=256))
    worker.deploy("raises", failing.RAISING["an exception of its own"][0])
    frames = worker.invoke("raises").json["stackTrace"]
    assert [frame.split(", in ")[1].split()[0] for frame in frames] == ["f", "deep"]
    # The text of an error needs none of these, and the function's imports find its own.
    own = {f"{name}.py": "mine = True" for name in ("ast", "linecache", "token", "tokenize", "traceback")}
    worker.deploy("named-alike", {"f.py": "import token\ndef f(event): raise ValueError(token.mine)", **own})
    answer = worker.invoke("named-alike")
    assert (answer.error, answer.json["errorMessage"]) == ("ValueError", "True")
    assert "raise ValueError(token.mine)" in answer.json["stackTrace"][-1]


@case("F2", "code that is not Python, or without a handler", expect="500 with the error's type and the line")
def test_code_that_is_not_python(worker: PrivateWorker, happened: Happened) -> None:
    happened(check(worker, failing.NOT_PYTHON, 500))


@case("F3", "an import of a module that is not there", expect="ModuleNotFoundError that lists what is installed")
def test_a_missing_module(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy(
        "misses",
        "import there\nimport nowhere\ndef f(event): pass",
        requirements=["there-it-is"],
        wheels=[wheel("there-it-is", "1.5", {"there.py": "x = 1\n"})],
    )
    worker.deploy("bare", "def f(event): import nowhere")
    misses, bare = worker.invoke("misses"), worker.invoke("bare")
    happened(misses.json["errorMessage"])
    assert (misses.status, misses.error) == (500, "ModuleNotFoundError")
    assert "'nowhere'" in misses.json["errorMessage"] and "there-it-is-1.5" in misses.json["errorMessage"].replace(
        "_", "-"
    )
    assert (bare.status, bare.error) == (500, "ModuleNotFoundError") and "requirements.txt" in bare.json["errorMessage"]


@case("F4", "sys.exit and os._exit, in every place", expect="502 Runtime.ExitError with the exit status")
def test_exits(worker: PrivateWorker, happened: Happened) -> None:
    table = {what: (code, "Runtime.ExitError", words) for what, (code, words) in failing.EXITING.items()}
    happened(check(worker, table, 502))


@case("F5", "segmentation fault, abort, illegal instruction, stack overflow", expect="502 that names the signal")
def test_crashes(worker: PrivateWorker, happened: Happened) -> None:
    table = {what: (code, "Runtime.ExitError", words) for what, (code, words) in failing.CRASHING.items()}
    happened(check(worker, table, 502))


@case("F6", "answers that JSON cannot hold", expect="500 Runtime.MarshalError; the sandbox goes on")
def test_answers_that_are_not_json(worker: PrivateWorker, happened: Happened) -> None:
    came = answers(worker, {what: f"def f(event):\n {body}" for what, body in failing.NOT_JSON.items()})
    for what, (first, second) in came.items():
        assert (first.status, first.error) == (500, "Runtime.MarshalError"), (what, first.body)
        assert second.headers["x-sockd-cold"] == "0" and second.error == first.error, what
    happened(f"{len(came)} kinds, each Runtime.MarshalError, twice from the same sandbox")
