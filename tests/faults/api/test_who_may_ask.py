"""Requests of those who may not, and of those who ask again or all at once."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.daemon.aws_client import client_of
from tests.daemon.gate import Gate
from tests.daemon.running import zipped
from tests.faults.api.asking import Signer, answer, message, statuses
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker

pytestmark = pytest.mark.root

LIST = "/2015-03-31/functions/"
INVOKE = "/2015-03-31/functions/echo/invocations"
WAITS = {"f.py": "from gate import wait\ndef f(event): return wait(event['gate'], VERSION)\n", "gate.py": Gate.CODE}
CALLS = 20_000
WEIGHT = 0.1
OFF = 0.01
"""Share by which the canary's may be off: over so many calls, nearly five standard deviations."""
TICK_S = 0.02
STRANGERS = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "[::ffff:8.8.8.8]", "10.0.0.1")


@case("H4", "unsigned requests, and signatures that are forged, of another body, of an hour ago", expect="403 each")
def test_only_who_signs_is_let_in(worker: PrivateWorker, echo: str, signer: Signer, happened: Happened) -> None:
    sign, body = signer.headers, b'"once"'
    good = sign("POST", INVOKE, body)
    asked = {
        "unsigned": message("GET", LIST),
        "unsigned invocation": message("POST", INVOKE, body),
        "another secret": message("POST", INVOKE, body, sign("POST", INVOKE, body, secret="another secret than ours")),
        "an hour old": message("POST", INVOKE, body, sign("POST", INVOKE, body, ago_s=3600)),
        "an hour ahead": message("POST", INVOKE, body, sign("POST", INVOKE, body, ago_s=-3600)),
        "another body": message("POST", INVOKE, b'"more"', good),
        "another function": message("POST", INVOKE.replace("echo", "neighbour"), body, good),
        "another method": message("DELETE", LIST + "echo", b"", sign("GET", LIST + "echo")),
        "no date": message("POST", INVOKE, body, {key: each for key, each in good.items() if key != "X-Amz-Date"}),
        "cut short": message("POST", INVOKE, body, {**good, "Authorization": good["Authorization"][:-1]}),
    }
    came = {name: answer(worker.daemon.port, request).status for name, request in asked.items()}
    happened(", ".join(f"{name} {status}" for name, status in came.items()))
    assert came == dict.fromkeys(asked, 403)
    whole = answer(worker.daemon.port, message("POST", INVOKE, body, good))
    assert (whole.status, whole.json) == (200, ["once"])


SENDS = """
import urllib.error, urllib.request
def f(event):
    url, form, headers = event
    try: return urllib.request.urlopen(urllib.request.Request(url, form.encode(), headers), timeout=5).status
    except urllib.error.HTTPError as error: return error.code
"""


@case(
    "H8",
    "a function sends a test event of the page, with its token; so does a web page of another site, and a script without it",
    expect="403 each; 200 from the page itself",
)
def test_only_the_page_sends_test_events(worker: PrivateWorker, echo: str, happened: Happened) -> None:
    worker.deploy("sends", SENDS)
    daemon, path = worker.daemon, "/functions/echo/test-events"
    token = (
        daemon.request("GET", "/functions/echo").body.decode().partition('name="token" value="')[2].partition('"')[0]
    )
    form, guessed = f"token={token}&event=1", f"token={'0' * 64}&event=1"
    ours = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Sec-Fetch-Dest": "document",
        "Sec-Fetch-Site": "same-origin",
        "Origin": daemon.url,
    }
    elsewhere = {**ours, "Sec-Fetch-Site": "cross-site", "Origin": "https://elsewhere.example"}
    came = {
        "a function": worker.call("sends", [f"{daemon.url}{path}", form, ours]),
        "a page elsewhere": daemon.request("POST", path, form, elsewhere).status,
        "a script": daemon.request("POST", path, form, {**ours, "Sec-Fetch-Dest": "empty"}).status,
        "a guessed token": daemon.request("POST", path, guessed, ours).status,
        "a token of another function": daemon.request("POST", path.replace("echo", "neighbour"), form, ours).status,
    }
    happened(", ".join(f"{name} {status}" for name, status in came.items()))
    assert came == dict.fromkeys(came, 403)
    assert daemon.request("POST", path, form, ours).status == 200
    assert daemon.call("echo", 2) == [1, 2], "nothing else has run"


@case("H4", "start a worker that other machines reach, without a key", expect="it refuses, and says what to configure")
def test_an_open_api_needs_a_lock(worker: PrivateWorker, tmp_path: Path, happened: Happened) -> None:
    started = worker.cli("up", "--listen", "0.0.0.0:0", "--state-dir", str(tmp_path / "state"), check=False)
    said = [line.strip() for line in (started.stderr + started.stdout).splitlines() if "lambda_api.keys" in line]
    happened(" ".join(said))
    assert started.returncode != 0 and said


@case(
    "H5",
    "an SDK asks again, under the same id, while the function runs and when it has ended",
    expect="one run, one answer",
)
def test_who_asks_again_gets_the_same_answer(
    worker: PrivateWorker, session: boto3.Session, gate: Gate, happened: Happened
) -> None:
    worker.deploy("waits", {**WAITS, "f.py": "VERSION = 'run'\n" + WAITS["f.py"]}, timeout_s=20)
    client = client_of(session, worker.daemon)

    def stamp(request: Any, **more: Any) -> None:
        request.headers["amz-sdk-invocation-id"] = "5c3e9d4e-0000-4000-8000-000000000001"

    client.meta.events.register("before-send.lambda.Invoke", stamp)

    def ask() -> bytes:
        payload = json.dumps({"gate": gate.port})
        return bytes(client.invoke(FunctionName="waits", Payload=payload)["Payload"].read())

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask)]
        assert gate.arrived() == "run"
        asked += [pool.submit(ask) for _ in range(3)]
        gate.open("the answer")
        runs = 1 + let_on(gate, asked)
        asked.append(pool.submit(ask))
        runs += let_on(gate, asked)
    client.close()
    answers = {each.result() for each in asked}
    happened(f"{len(asked)} requests, {len(answers)} answer, {runs} run")
    assert (answers, runs) == ({b'"the answer"'}, 1)


def let_on(gate: Gate, asked: Iterable[Future[bytes]]) -> int:
    """Wait for all answers; how many more runs it took, which are let on with another answer."""
    more = 0
    while wait(asked, timeout=TICK_S).not_done:
        if not gate.nobody_comes():
            gate.arrived()
            gate.open("another answer")
            more += 1
    return more


@case(
    "H6", f"{CALLS} calls of an alias that leads {WEIGHT:.0%} to another version",
    expect=f"{WEIGHT - OFF:.0%} to {WEIGHT + OFF:.0%} get there", default=False,
)  # fmt: skip
@pytest.mark.timeout(120)
def test_a_share_is_what_was_asked_for(worker: PrivateWorker, happened: Happened) -> None:
    for version in ("1", "2"):
        worker.deploy("shared", f"def f(event): return {version}")
        worker.cli("publish", "shared")
    worker.cli("alias", "shared", "prod", "1", "--canary", f"2={WEIGHT:.0%}")

    def ask(count: int) -> Counter[bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", worker.daemon.port, timeout=30)
        came: Counter[bytes] = Counter()
        for _ in range(count):
            connection.request("POST", "/run/shared:prod", b"{}")
            came[connection.getresponse().read()] += 1
        connection.close()
        return came

    with ThreadPoolExecutor(4) as pool:
        came = sum(pool.map(ask, [CALLS // 4] * 4), Counter())
    share = came[b"2"] / CALLS
    happened(f"{share:.2%}")
    assert set(came) == {b"1", b"2"} and abs(share - WEIGHT) < OFF


@case(
    "H7", "update a function's code while it runs; and twice at once, both from the same revision",
    expect="who runs ends as it began, the next is new; of the two one is refused",
)  # fmt: skip
def test_an_update_is_whole_and_of_two_one_wins(
    worker: PrivateWorker, session: boto3.Session, gate: Gate, happened: Happened
) -> None:
    worker.deploy("waits", {**WAITS, "f.py": "VERSION = 'old'\n" + WAITS["f.py"]}, timeout_s=20)
    client = client_of(session, worker.daemon)
    event = {"gate": gate.port}
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(worker.call, "waits", event)
        came = [gate.arrived()]
        new = zipped({**WAITS, "f.py": "VERSION = 'new'\n" + WAITS["f.py"]})
        revision = client.update_function_code(FunctionName="waits", ZipFile=new)["RevisionId"]
        after = pool.submit(worker.call, "waits", event)
        came.append(gate.arrived())
        gate.open("done")
        assert (running.result(), after.result()) == ("done", "done")
        together = threading.Barrier(2)

        def update(number: int) -> str:
            code = zipped({"f.py": f"def f(event): return {number}"})
            together.wait()
            try:
                client.update_function_code(FunctionName="waits", ZipFile=code, RevisionId=revision)
            except ClientError as error:
                return str(error.response["Error"]["Code"])
            return ""

        results = list(pool.map(update, (1, 2)))
    client.close()
    happened(f"runs of {came}; the update that lost: {''.join(results)}")
    assert came == ["old", "new"]
    assert results.count("") == 1
    assert {*results} - {""} <= {"PreconditionFailedException", "ResourceConflictException"}
    assert worker.call("waits", None) == 1 + results.index("")


@case(
    "H8", "a web page that has pointed its name at 127.0.0.1, and one that has the browser post to it",
    expect="403, whatever is asked for; no answer lets another origin read it",
)  # fmt: skip
def test_no_page_of_another_site_gets_in(worker: PrivateWorker, echo: str, happened: Happened) -> None:
    port = worker.daemon.port
    for host in STRANGERS:
        for method, target in (("POST", "/run/echo"), ("GET", "/"), ("GET", "/status"), ("GET", LIST)):
            assert statuses(port, [message(method, target, b"", {"Host": host, "Connection": "close"})]) == [403], (
                target
            )
    page = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}
    posted = answer(port, message("POST", "/run/echo", b'"posted"', page))
    asking = {**page, "Access-Control-Request-Method": "POST"}
    preflights = [answer(port, message("OPTIONS", target, b"", asking)) for target in ("/run/echo", "/", LIST)]
    happened(f"{len(STRANGERS)} names 403, a post {posted.status}, preflights {[each.status for each in preflights]}")
    assert posted.status == 403
    assert not any("access-control-allow-origin" in each.headers for each in (posted, *preflights))
    assert worker.call(echo, "only this") == ["only this"]
