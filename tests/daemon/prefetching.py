"""Functions that read from S3, and initscripts that fetch for them; for tests of the two together.

A function's sandbox has no boto3, so its code brings a stand-in of the few calls that the storage library makes on a miss,
on the S3 server's own client.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import sockd
from benchmarks.s3.process import S3Process
from tests.daemon.gate import Gate
from tests.daemon.running import Answer, RunningDaemon
from tests.initscripts.guests import module

READY = "the initscript engine is ready"
"""A line of the daemon's log."""
ROOTS = {"sockd": Path(sockd.__file__).parents[1], "benchmarks": Path(__file__).parents[2]}
"""Where its packages are: those of benchmarks are with the tests, which an installed sockd has elsewhere than its own."""
CLIENT = (
    "benchmarks/s3/__init__",
    "benchmarks/s3/client",
    "benchmarks/s3/xml",
    "sockd/base/http_client/__init__",
    "sockd/base/http_client/connection",
    "sockd/base/http_client/pool",
    "sockd/base/sigv4/__init__",
    "sockd/base/sigv4/canonical",
    "sockd/base/sigv4/signer",
)
STAND_INS = {
    "boto3.py": """
import io, os
from benchmarks.s3.client import Client
from sockd.base.sigv4.canonical import Credentials

def connected():
    keys = Credentials(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    return Client(os.environ["AWS_ENDPOINT_URL_S3"], keys)

class S3:
    def get_object(self, Bucket, Key):
        with connected() as client:
            data = client.get(Bucket, Key)
        return {"ContentLength": len(data), "Body": io.BytesIO(data)}

    def list_objects_v2(self, Bucket, Prefix=""):
        with connected() as client:
            return {"Contents": [{"Key": key} for key in client.list(Bucket, Prefix)]}

    def upload_fileobj(self, file, bucket, key):
        with connected() as client:
            client.put(bucket, key, file.read())

def client(service, config=None):
    return S3()
""",
    "botocore/__init__.py": "",
    "botocore/config.py": "class Config:\n    def __init__(self, **options): pass\n",
    "botocore/exceptions.py": "class HTTPClientError(Exception): pass\nclass IncompleteReadError(Exception): pass\n",
    **{f"{package}/__init__.py": "" for package in ("benchmarks", "sockd", "sockd/base")},
    **{f"{name}.py": (ROOTS[name.partition("/")[0]] / f"{name}.py").read_text() for name in CLIENT},
    "gate.py": Gate.CODE,
}

READS = """
import hashlib, os
import storage

def f(event):
    return [hashlib.sha256(storage.download_stream("data", key)).hexdigest() for key in event["keys"]]
"""
"""Reads the event's keys, in their order; the digests of what it got."""


def reading(text: str = READS, **more: str | bytes) -> dict[str, str | bytes]:
    """The files of a function that uses the storage library. Args: more: files, with `_` for the dot of their names."""
    return {**STAND_INS, "f.py": text, **{name.replace("_", "."): content for name, content in more.items()}}


def fetching(*keys: str, then: str = "", first: str = "") -> bytes:
    """An initscript that fetches these objects of the bucket `data`, all at once, and passes each on.

    Args: first, then: what it does before and afterwards, in WebAssembly's text form; `@text` is "some text", `@head` the method
    HeadObject, `@key0` what the first object is asked for with."""
    texts = {f"key{n}": json.dumps({"bucket": "data", "key": key}) for n, key in enumerate(keys)}
    sends = [f"(drop (call $send_rpc (local.get $a) (i64.const {n}) @method @key{n}))" for n in range(len(keys))]
    passes = [
        f"""(drop (call $recv_rpc_reply (local.get $a) (i64.const {n}) (i32.const 1024)))
        (drop (call $send_msg (i64.const {n}) (i32.load (i32.const 1024)) (i64.const 0) (i64.load (i32.const 1032))))"""
        for n in range(len(keys))
    ]
    body = "\n".join([first, "(local.set $a (call $connect @s3))", *sends, *passes, then])
    return module(body, notes=False, s3="s3:", method="GetObject", head="HeadObject", text="some text", **texts)


def patient(server: S3Process) -> dict[str, str]:
    """The environment of a function that finds the server, and that waits longer than a busy machine may take until a script
    answers: what it reads comes from the script, then, not from the first of the two."""
    return {**server.env(), "SOCKD_STORAGE_GRACE_S": "5"}


def digest(data: bytes) -> str:
    """What READS answers for an object."""
    return hashlib.sha256(data).hexdigest()


def trace(daemon: RunningDaemon, answer: Answer) -> dict[str, Any]:
    """The trace of an answered request, as it is when its initscript's report has come: the daemon waits a second for that,
    and we a few more."""
    for _ in range(10):
        shown: dict[str, Any] = daemon.manage("GET", f"/traces/{answer.headers['x-amzn-requestid']}").json
        if shown["initscript"] != "running":
            break
    return shown


def spans(shown: dict[str, Any], track: str) -> list[dict[str, Any]]:
    """One track of a trace."""
    return [span for span in shown["spans"] if span["track"] == track]


def sources(shown: dict[str, Any]) -> list[str]:
    """Where each read of a trace came from: "region" or "network"."""
    return [span["detail"].partition(":")[0] for span in spans(shown, "reads")]


def engine_pid(daemon: RunningDaemon) -> int:
    """The engine itself: the one process whose launcher is the daemon's child."""
    for pid in daemon.pids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if b"sockd_initscripts" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
    raise AssertionError("no engine")
