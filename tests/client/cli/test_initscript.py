"""`sockd initscript`: from source to module to a run against real services, and from a recorded start back to source."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks.s3.process import S3Process
from sockd.client.cli.functions.initscript import initscript
from sockd_initscripts.authoring import recorder, toolchain
from tests.client.cli.serving import Run
from tests.initscripts.builds import build, build_text, example
from tests.support import sockd_template
from tests.support.servers import peers
from tests.support.servers.sqs import Sqs
from tests.support.servers.vector_db import shard

SOURCE = '#include "sockd_init.h"\nSOCKD_EXPORT void boot(void) { sockd_exit(7); }\n'
IMPORTER = """
__attribute__((import_module("env"), import_name("puts"))) void elsewhere(void);
__attribute__((export_name("boot"))) void boot(void) { elsewhere(); }
"""


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(initscript, [str(argument) for argument in arguments])


def put_module(path: Path, wasm: bytes) -> Path:
    path.write_bytes(wasm)
    return path


# -- build, check


def test_build_says_how_large_the_module_is(tmp_path: Path) -> None:
    source = tmp_path / "my.c"
    source.write_text(SOURCE)
    done = command("build", source)
    size = (tmp_path / "my.wasm").stat().st_size
    assert done.output.startswith(f"{tmp_path}/my.wasm: {size} bytes (")
    fields = json.loads(command("build", source, "-o", tmp_path / "other.wasm", "--json").output)
    assert (fields["path"], fields["size_bytes"]) == (f"{tmp_path}/other.wasm", size)


def test_build_shows_what_the_compiler_says(tmp_path: Path) -> None:
    source = tmp_path / "my.c"
    source.write_text("oops")
    done = command("build", source)
    assert done.exit_code == 1
    assert "my.c:1:1" in done.output and "refused my.c" in done.output


def test_build_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = command("build", toolchain.EXAMPLES / "thumbnailer/thumbnailer.rs", "-o", tmp_path / "t.wasm")
    assert done.exit_code == 1
    assert "fix: " in done.output and "rustup target add wasm32-unknown-unknown" in done.output


def test_check_says_what_a_module_needs_and_how_soon_it_starts(tmp_path: Path) -> None:
    module = put_module(tmp_path / "t.wasm", example("thumbnailer"))
    done = command("check", module)
    assert done.exit_code == 0
    assert "connect, send_rpc, recv_rpc_reply" in done.output and "1 page of 64 KB" in done.output
    fields = json.loads(command("check", module, "--json").output)
    assert fields["outcome"] == "exit"
    assert fields["start_ms"] > 0
    assert fields["module"]["size_bytes"] == module.stat().st_size


def test_check_names_what_is_wrong_with_a_module(tmp_path: Path) -> None:
    source = tmp_path / "my.c"
    source.write_text(IMPORTER)
    done = command("check", put_module(tmp_path / "my.wasm", build(source)))
    assert done.exit_code == 1
    assert "unknown import env.puts" in done.output
    assert "not a WebAssembly" in command("check", source).output


# -- run


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Process]:
    with S3Process() as server:
        client = server.client()
        try:
            client.make_bucket("bench")
            for key in ("in/a b.jpg", "in/dir/1&1.txt", "in/dir/é.txt", "models/net.pth"):
                client.put("bench", key, key.encode())
        finally:
            client.close()
        yield server


Rehearse = Callable[..., Any]


@pytest.fixture
def rehearse(tmp_path: Path) -> Rehearse:
    """`sockd initscript run --json` of a module, in a process of its own: gRPC keeps threads that outlive it."""

    def rehearse(wasm: bytes, event: object, env: dict[str, str], *options: str, expected: int = 0) -> Any:
        module = put_module(tmp_path / "module.wasm", wasm)
        done = sockd_template.run(
            [sys.executable, "-m", "sockd", "initscript", "run", str(module), "-d", json.dumps(event), *options],
            env={**os.environ, **env, "NO_COLOR": "1"},
        )
        assert done.returncode == expected, done.stderr
        return json.loads(done.stdout) if "--json" in options else done.stdout

    return rehearse


def test_run_shows_the_rpcs_and_what_the_function_would_get(s3: S3Process, rehearse: Rehearse) -> None:
    event = {"bucket": {"bucket": "bench", "input": "in"}, "object": {"key": "dir"}}
    ran = rehearse(example("compression"), event, s3.env(), "--json")
    keys = ["in/dir/1&1.txt", "in/dir/é.txt"]
    reads = [["s3.ListObjectsV2", "bench", "in/dir"], *(["s3.GetObject", "bench", key] for key in keys)]
    assert [(rpc["descriptor"], rpc["status"]) for rpc in ran["report"]["rpcs"]] == [(read, 200) for read in reads]
    assert [(one["id"], one["rpc"], one["status"]) for one in ran["received"]] == [
        (number, read, 200) for number, read in enumerate(reads)
    ]
    assert [one["bytes"] for one in ran["received"][1:]] == [len(key.encode()) for key in keys]
    text = rehearse(example("compression"), event, s3.env())
    assert "s3.GetObject bench in/dir/é.txt" in text
    assert "exit 0; started after" in text


def test_run_shows_what_failed_and_what_did_not(s3: S3Process, rehearse: Rehearse) -> None:
    event = {
        "bucket": {"bucket": "bench", "input": "in", "model": "models"},
        "object": {"input": "no", "model": "net.pth"},
    }
    ran = rehearse(example("image_recognition"), event, s3.env(), "--json")
    assert [(one["op"], one["id"], one["status"]) for one in ran["received"]] == [
        ("message", 0, 404),
        ("message", 1, 200),
    ]
    nowhere = rehearse(
        example("image_recognition"), event, s3.env(), "--json", "--env", "AWS_ENDPOINT_URL_S3=http://[::1]:1"
    )
    assert {(one["op"], one["status"]) for one in nowhere["received"]} == {("failed", 0)}
    assert "refused" in nowhere["received"][0]["reason"]
    assert "failed" in rehearse(example("image_recognition"), event, {}, "--env", "AWS_ENDPOINT_URL_S3=http://[::1]:1")


def test_run_keeps_to_the_endpoints_that_are_given(s3: S3Process, rehearse: Rehearse) -> None:
    event = {"bucket": {"bucket": "bench", "input": "in"}, "object": {"key": "a b.jpg"}}
    host = s3.url.removeprefix("http://")
    ran = rehearse(example("thumbnailer"), event, s3.env(), "--json", "--endpoints", f"elsewhere,{host}")
    assert [one["status"] for one in ran["received"]] == [200]
    ran = rehearse(example("thumbnailer"), event, s3.env(), "--json", "--endpoints", "")
    assert (ran["report"]["rpcs"], ran["received"]) == ([], [])


def test_run_claims_work_and_gets_the_object_that_it_names(s3: S3Process, rehearse: Rehearse) -> None:
    with Sqs(s3.credentials) as sqs:
        event = {"queue": sqs.send("work", json.dumps({"key": "in/a b.jpg"})), "bucket": "bench"}
        env = {**s3.env(), "AWS_ENDPOINT_URL_SQS": sqs.url}
        ran = rehearse(example("sqs_claim"), event, env, "--json")
        assert [one["id"] for one in ran["received"]] == [1 << 32, 0]
        assert ran["received"][1]["rpc"] == ["s3.GetObject", "bench", "in/a b.jpg"]
        # The work is claimed now.
        ran = rehearse(example("sqs_claim"), event, env, "--json", expected=1)
        assert (ran["report"]["outcome"], ran["report"]["status"]) == ("abort", 204)
        assert "abort 204: the queue is empty" in rehearse(example("sqs_claim"), event, env, expected=1)


def test_run_gets_the_shards_of_a_database(rehearse: Rehearse) -> None:
    with peers.vector_db() as url:
        ran = rehearse(example("vector_db"), {"server": url, "shards": ["s0", "s1"]}, {}, "--json")
    assert [(one["op"], one["id"]) for one in ran["received"]] == [("message", 0), ("message", 1)]
    assert ran["received"][0]["bytes"] == len(shard("s0"))


def test_run_refuses_what_is_no_variable_or_event(tmp_path: Path) -> None:
    module = put_module(tmp_path / "t.wasm", example("thumbnailer"))
    assert "not K=V" in command("run", module, "--env", "K").output
    assert command("run", module, "-d", "@nowhere").exit_code == 2
    assert command("run", module, "--endpoints", "a:b:c").exit_code == 2


def reads_of(event: Any, keys: Sequence[str]) -> list[list[str]]:
    """Return what a function reads that wants a directory, a model, and a named object; twice."""
    bucket, prefix = event["bucket"], f"{event['prefix']}/{event['object']['dir']}"
    found = sorted(key for key in keys if key.startswith(prefix))
    model = ["s3.GetObject", bucket, f"models/{event['object']['model']}"]
    named = [["s3.GetObject", bucket, f"{event['prefix']}/{name}"] for name in event["names"]]
    return [
        *named,
        ["s3.ListObjectsV2", bucket, prefix],
        *(["s3.GetObject", bucket, key] for key in found),
        model,
        model,
    ]


def test_what_was_recorded_runs_with_another_event(s3: S3Process, rehearse: Rehearse) -> None:
    recorded = {"bucket": "old", "prefix": "was", "object": {"dir": "here", "model": "m1"}, "names": ["x 1", "y 2"]}
    text = recorder.write(reads_of(recorded, ["was/here/1", "was/here/2", "was/there"]), recorded, name="f")
    event = {"bucket": "bench", "prefix": "in", "object": {"dir": "dir", "model": "net.pth"}, "names": ["a b.jpg"]}
    ran = rehearse(build_text(text), event, s3.env(), "--json")
    expected = reads_of(event, ["in/dir/1&1.txt", "in/dir/é.txt"])
    received = sorted(ran["received"], key=lambda one: one["id"])
    assert [(one["id"], one["rpc"], one["status"]) for one in received] == [
        (number, read, 200) for number, read in enumerate(expected)
    ]


# -- record


def test_record_writes_a_source_that_builds(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "my.c"
    done = run("initscript", "record", "echo", "-d", '{"bucket": "b", "key": "k"}', "-o", str(source))
    assert (done.returncode, done.stdout) == (0, f"{source}: 1 read\n")
    assert "sockd_s3_get(s3, 0, " in source.read_text()
    assert command("check", put_module(tmp_path / "my.wasm", build(source))).exit_code == 0


def test_record_does_not_replace_what_somebody_may_have_edited(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "my.rs"
    source.write_text("mine")
    arguments = ("initscript", "record", "echo", "--language", "rust", "-o", str(source))
    done = run(*arguments)
    assert done.returncode == 2 and "--force" in done.stderr
    assert source.read_text() == "mine"
    assert run(*arguments, "--force").returncode == 0
    assert "boot!(run);" in source.read_text()


def test_record_of_what_does_not_work_writes_nothing(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "my.c"
    assert run("initscript", "record", "nobody", "-o", str(source)).returncode == 3
    assert run("initscript", "record", "echo", "-d", "{", "-o", str(source)).returncode == 2
    assert run("initscript", "record", "raises", "-o", str(source)).returncode == 1
    assert not source.exists()
