"""Settings, bodies and names that somebody hostile writes: heads stay whole, parsers stay bounded, errors stay typed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.daemon.running import COMMAND, Answer, DeployFailed
from tests.faults.api.asking import Signer, answer, message
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker

pytestmark = pytest.mark.root
CODE = "def f(event): return 1\n"
EVIL = ("a\r\nX-Evil: 1", "GET\n", "\r", "\0", "\x7f", "\u2028")
TYPED = {"InternalError", "ServiceException"}
"""What an error that is no answer to anybody is called."""


def refused(worker: PrivateWorker, files: dict[str, str | bytes]) -> str:
    """The type of the error that a deploy ends with; "" if it is taken."""
    try:
        worker.deploy("hostile", files)
    except DeployFailed as error:
        assert error.status < 500 and error.type not in TYPED, (error.status, error.type, error.message)
        return str(error.type)
    return ""


def heads(worker: PrivateWorker) -> list[Answer]:
    """What the APIs answer where a setting may stand in the head."""
    port = worker.daemon.port
    return [
        answer(port, message(method, target, headers={"Origin": "https://a.example"}))
        for method in ("PUT", "DELETE", "OPTIONS")
        for target in ("/run/hostile", "/healthz")
    ]


@case(
    "K6",
    "CR, LF, NUL and line separators in every setting, name and header of sockd.toml, ol.yaml, the APIs and CORS",
    expect="a typed refusal, or a value that is reported in JSON alone; no answer has a header that we did not write",
)
def test_no_setting_splits_a_head(worker: PrivateWorker, signer: Signer, happened: Happened) -> None:
    taken = []
    for evil in EVIL:
        text = json.dumps(evil)  # is a string of TOML and of YAML, too
        for file, content in (
            ("sockd.toml", f"methods = [{text}]"),
            ("sockd.toml", f"handler = {text}"),
            ("sockd.toml", f"{text} = 1"),
            ("sockd.toml", f"[env]\n{text} = 'x'"),
            ("sockd.toml", f"[initscript]\nwasm = {text}"),
            ("sockd.toml", f"[initscript]\nendpoints = [{text}]"),
            ("ol.yaml", f"triggers:\n  http:\n    - method: {text}\n"),
            ("ol.yaml", f"environment:\n  {text}: x\n"),
        ):
            if not refused(worker, {"f.py": CODE, file: content}):
                taken.append((file, content))
    assert taken == []
    worker.deploy("hostile", CODE, methods=["GET"])
    manage = worker.daemon.manage
    for evil in EVIL:
        named = quote(evil, safe="")
        asked: list[tuple[str, str, Any]] = [
            ("PUT", f"/functions/hostile/url?qualifier={named}", {}),
            *(
                ("PUT", "/functions/hostile/url", {"cors": {key: [evil]}})
                for key in ("AllowMethods", "AllowOrigins", "AllowHeaders")
            ),
            ("PUT", f"/functions/hostile/aliases/{named}", {"version": "1"}),
            ("PUT", f"/schedules/{named}", {"function": "hostile", "expression": "rate(1 hour)"}),
            ("PUT", "/schedules/s", {"function": "hostile", "expression": evil}),
            ("PUT", "/schedules/s", {"function": "hostile", "expression": "0 9 * * *", "timezone": evil}),
            ("PUT", "/functions/hostile/event-invoke-config", {"on_failure": evil}),
            ("PUT", f"/functions/hostile/event-invoke-config?qualifier={named}", {"max_retries": 1}),
            ("PATCH", "/functions/hostile/env", {"set": {evil: "x"}}),
            ("GET", f"/functions/{named}", {}),
        ]
        for method, path, body in asked:
            reported = manage(method, path, json.dumps(body))
            assert 400 <= reported.status < 500 and "x-evil" not in reported.headers, (method, path, body, reported)
        signed = {"Description": evil, "Role": evil}
        target = "/2015-03-31/functions/hostile/configuration"
        sent = json.dumps(signed).encode()
        reported = answer(worker.daemon.port, message("PUT", target, sent, signer.headers("PUT", target, sent)))
        assert reported.status in (200, 400) and "x-evil" not in reported.headers, reported
    for reported in heads(worker):
        assert "x-evil" not in reported.headers, reported
    happened(
        f"{len(EVIL)} texts, each in 18 places: refused; PUT /run/hostile allows {heads(worker)[0].headers['allow']}"
    )


DEEP = "(" * 3000
BODIES = {"deep": "[" * 50_000, "digits": "9" * 50_000, "exponent": "1e" + "9" * 50_000}


@case(
    "K11",
    "a key of 7900 parts, numbers of thousands of digits, 3000 parentheses, 16 KB of brackets in settings and bodies",
    expect="each is refused with what is wrong, at once; a neighbour's calls go on meanwhile",
)
def test_parsers_are_bounded(worker: PrivateWorker, happened: Happened) -> None:
    hostile: list[tuple[str, str]] = [
        ("sockd.toml", "a." * 7900 + "a = 1"),
        ("sockd.toml", "memory_mb = " + "9" * 5000),
        ("sockd.toml", "memory_mb = 0x" + "f" * 15_000),
        ("sockd.toml", "x = " + "[" * 15_000),
        ("ol.yaml", "limits:\n  cpu_percent: " + "9" * 4000),
        ("ol.yaml", "[" * 15_000),
        ("requirements.txt", f"numpy; {DEEP}os_name=='x'{')' * 3000}"),
        ("requirements.txt", f"numpy; {'(' * 900}os_name=='x'{')' * 900}"),
        ("requirements.txt", "numpy==" + "9" * 5000),
        ("requirements.txt", "a==1" + ",==1" * 60_000),
    ]
    with worker.watching() as watch:
        types = [refused(worker, {"f.py": CODE, file: content}) for file, content in hostile]
        assert all(types), list(zip(hostile, types, strict=True))
        statuses = set()
        worker.deploy("hostile", CODE)
        for body in BODIES.values():
            for method, path in (
                ("PATCH", "/functions/hostile/env"),
                ("PUT", "/functions/hostile/url"),
                ("PUT", "/functions/hostile/event-invoke-config"),
                ("PUT", "/schedules/s"),
                ("PATCH", "/schedules/s"),
                ("POST", "/functions/hostile/versions"),
                ("PUT", "/functions/hostile/aliases/a"),
            ):
                for text in (body, f'{{"x": {body}}}'):
                    statuses.add(worker.daemon.manage(method, path, text).status)
        for length in ("9" * 4300, "9" * 5000):
            statuses.add(
                answer(
                    worker.daemon.port,
                    f"POST /run/hostile HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode(),
                ).status
            )
    happened(
        f"{len(types)} files and {len(BODIES) * 14} bodies refused, statuses {sorted(statuses)}; neighbour {watch}"
    )
    assert all(400 <= status < 500 for status in statuses)


def test_the_worker_refuses_control_characters_in_its_own_settings(tmp_path: Path) -> None:
    """`tests/fuzz/test_settings.py` walks all of them; this is one at a real start."""
    file = tmp_path / "worker.toml"
    file.write_text('[function_urls]\ndomain = "a\\r\\nb"\n')
    command = [*COMMAND, "--config", str(file), "--state-dir", str(tmp_path / "state")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0 and "control characters" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
