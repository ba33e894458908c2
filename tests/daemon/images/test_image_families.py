"""Functions in images of other languages and C libraries: programs in Rust and Java, built here with their public runtime
clients, and handlers in a CPython on musl. Run by name, as those of test_families.py: `pytest -m families`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.daemon.images.test_images import deploy, upload
from tests.daemon.running import RunningDaemon
from tests.daemon.starts.test_families import build, needs
from tests.support.images.image_layouts import Files, write_layout

pytestmark = [pytest.mark.root, pytest.mark.families, pytest.mark.timeout(900)]

MUSL = "SOCKD_MUSL_PYTHON"
"""Variable with a directory that has lib/ld-musl-x86_64.so.1, usr/bin/python3.N and usr/lib: CPython's `make install` after
`./configure CC=musl-gcc --prefix=/usr --enable-shared`."""
LARGE = 5_000_000


def judge(daemon: RunningDaemon, name: str, digest: str, **settings: object) -> None:
    """Deploy a program of the contract: {"what": "raise" | "exit" | "sleep" | "large" | "length"}, all else is answered as
    it came."""
    deploy(daemon, name, digest, network="none", **{"timeout_s": 10, "init_timeout_s": 60, **settings})
    assert daemon.call(name, {"n": 1})["event"] == {"n": 1}
    bad = daemon.run(name, {"what": "raise"})
    assert bad.status == 500 and bad.json["errorMessage"] == "no"
    ended = daemon.run(name, {"what": "exit"})
    assert (ended.status, ended.json["errorType"]) == (502, "Runtime.ExitError") and "status 3" in ended.json[
        "errorMessage"
    ]
    assert "to the log" in daemon.log_of(name, daemon.run(name, {"n": 2}))
    assert len(daemon.call(name, {"what": "large", "n": LARGE})) == LARGE
    assert daemon.call(name, {"what": "length", "data": "y" * LARGE}) == LARGE
    with ThreadPoolExecutor(4) as threads:
        answers = threads.map(lambda _: daemon.run(name, {"what": "sleep", "s": 0.5}).json, range(4))
        assert [*answers] == ["slept"] * 4
    late = daemon.run(name, {"what": "sleep", "s": 60})
    assert (late.status, late.json["errorType"]) == (504, "Sandbox.Timedout")


# ---- Rust -----------------------------------------------------------------------------------------------------------------

CARGO = """
[package]
name = "bootstrap"
version = "0.1.0"
edition = "2021"
[dependencies]
lambda_runtime = { version = "0.13", default-features = false }
serde_json = "1"
tokio = { version = "1", features = ["macros", "rt"] }
[profile.release]
opt-level = 0
debug = false
"""
RUST = """
use lambda_runtime::{service_fn, Error, LambdaEvent};
use serde_json::{json, Value};
async fn handle(event: LambdaEvent<Value>) -> Result<Value, Error> {
    let event = event.payload;
    match event["what"].as_str() {
        Some("raise") => Err("no".into()),
        Some("exit") => std::process::exit(3),
        Some("sleep") => {
            tokio::time::sleep(std::time::Duration::from_secs_f64(event["s"].as_f64().unwrap_or(1.0))).await;
            Ok(json!("slept"))
        }
        Some("large") => Ok(json!("x".repeat(event["n"].as_u64().unwrap_or(0) as usize))),
        Some("length") => Ok(json!(event["data"].as_str().map(str::len))),
        _ => { println!("to the log"); Ok(json!({"event": event})) }
    }
}
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> { lambda_runtime::run(service_fn(handle)).await }
"""


def test_a_static_rust_binary_alone_in_its_image(daemon: RunningDaemon, tmp_path: Path) -> None:
    needs("cargo")
    (tmp_path / "src").mkdir()
    (tmp_path / "Cargo.toml").write_text(CARGO)
    (tmp_path / "src/main.rs").write_text(RUST)
    static = {"RUSTFLAGS": "-C target-feature=+crt-static", "CARGO_TARGET_DIR": str(tmp_path / "target")}
    target = "x86_64-unknown-linux-gnu"
    build(
        tmp_path, "cargo", "build", "--quiet", "--release", "--target", target, **(static | _given("CARGO_TARGET_DIR"))
    )
    made = Path((static | _given("CARGO_TARGET_DIR"))["CARGO_TARGET_DIR"]) / target / "release/bootstrap"
    write_layout(
        tmp_path / "image", [Files(executable={"bootstrap": made.read_bytes()})], {"Entrypoint": ["/bootstrap"]}
    )
    judge(daemon, "in-rust", upload(daemon, tmp_path / "image"))


def _given(name: str) -> dict[str, str]:
    return {name: os.environ[name]} if name in os.environ else {}


# ---- Java -----------------------------------------------------------------------------------------------------------------

POM = """
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>t</groupId><artifactId>t</artifactId><version>1</version><dependencies>
<dependency><groupId>com.amazonaws</groupId><artifactId>aws-lambda-java-runtime-interface-client</artifactId><version>2.6.0</version></dependency>
<dependency><groupId>com.amazonaws</groupId><artifactId>aws-lambda-java-core</artifactId><version>1.2.3</version></dependency>
</dependencies></project>
"""
JAVA = """
package example;
import com.amazonaws.services.lambda.runtime.Context;
import java.util.Map;
public class Handler {
    public Object handle(Map<String, Object> event, Context context) throws Exception {
        switch (String.valueOf(event.get("what"))) {
            case "raise": throw new IllegalStateException("no");
            case "exit": System.exit(3);
            case "sleep": Thread.sleep((long) (((Number) event.get("s")).doubleValue() * 1000)); return "slept";
            case "large": return "x".repeat(((Number) event.get("n")).intValue());
            case "length": return String.valueOf(event.get("data")).length();
            case "heap": return Runtime.getRuntime().maxMemory() >> 20;
        }
        System.out.println("to the log");
        return Map.of("event", event);
    }
}
"""
MODULES = "java.base,java.logging,java.naming,java.management,java.sql,java.xml,java.desktop,jdk.unsupported"
CLIENT = "com.amazonaws.services.lambda.runtime.api.client.AWSLambda"
LOADER = "/lib64/ld-linux-x86-64.so.2"
LIBRARIES = "/lib/x86_64-linux-gnu"


def test_java_with_awss_runtime_client(daemon: RunningDaemon, tmp_path: Path) -> None:
    needs("mvn", "javac", "jlink", "ldd")
    (tmp_path / "pom.xml").write_text(POM)
    (tmp_path / "Handler.java").write_text(JAVA)
    build(tmp_path, "mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib")
    build(tmp_path, "javac", "-cp", "lib/*", "-d", "classes", "Handler.java")
    build(tmp_path, "jlink", "--add-modules", MODULES, "--strip-debug", "--output", "jre")
    plain: dict[str, bytes | str] = {
        f"function/{jar.name}": jar.read_bytes() for jar in (tmp_path / "lib").glob("*.jar")
    }
    plain["function/example/Handler.class"] = (tmp_path / "classes/example/Handler.class").read_bytes()
    executable: dict[str, bytes | str] = {}
    add(executable, tmp_path / "jre", "opt/jre")
    needed = {f"{LIBRARIES}/librt.so.1", f"{LIBRARIES}/libpthread.so.0", f"{LIBRARIES}/libdl.so.2", LOADER}
    for file in (tmp_path / "jre/bin/java", *(tmp_path / "jre/lib").rglob("*.so")):
        done = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=True)
        needed |= {path for path in re.findall(r"=> (/\S+)", done.stdout) if not path.startswith(str(tmp_path))}
    for path in needed:
        executable[f"{LIBRARIES[1:]}/{Path(path).name}" if path != LOADER else LOADER[1:]] = Path(path).read_bytes()
    words = ["/opt/jre/bin/java", "-cp", "/function:/function/*", CLIENT]
    write_layout(
        tmp_path / "image",
        [Files(plain=plain, executable=executable)],
        {"Entrypoint": words, "Cmd": ["example.Handler::handle"], "WorkingDir": "/function"},
    )
    judge(daemon, "in-java", upload(daemon, tmp_path / "image"), memory_mb=512)
    assert 100 <= daemon.call("in-java", {"what": "heap"}) <= 128


def add(files: dict[str, bytes | str], top: Path, at: str) -> None:
    """Each file below a directory, links as what they lead to."""
    for file in top.rglob("*"):
        if file.is_file():
            files[f"{at}/{file.relative_to(top)}"] = file.read_bytes()


# ---- CPython on musl ------------------------------------------------------------------------------------------------------

HANDLER = """
import ctypes, json, locale, os, socket, ssl, subprocess, sys, threading, time, zlib
import pure_package
def ids():
    found = []
    threads = [threading.Thread(target=lambda: found.append(threading.get_native_id())) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join(5) for thread in threads]
    return len(set(found)), [thread.is_alive() for thread in threads]
def forked():
    ours, theirs = os.pipe()
    if not (pid := os.fork()):
        thread = threading.Thread(target=lambda: os.write(theirs, b"a thread of the child"))
        thread.start()
        thread.join()
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(ours, 100).decode()
def handler(event, context):
    what = event.get("what")
    if what == "raise":
        raise RuntimeError("no")
    if what == "exit":
        os._exit(3)
    if what == "sleep":
        time.sleep(event["s"])
        return "slept"
    if what == "large":
        return "x" * event["n"]
    if what == "length":
        return len(event["data"])
    if what == "all":
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_char_p
        child = subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True)
        return {
            "musl": any("ld-musl" in line for line in open("/proc/self/maps")), "gettid": libc.gettid(), "threads": ids(),
            "forked": forked(), "child": child.stdout + child.stderr, "getenv": libc.getenv(b"GREETING").decode(),
            "host": socket.gethostbyname(socket.gethostname()), "localhost": socket.getaddrinfo("localhost", 80)[0][4][0],
            "ssl": ssl.create_default_context().check_hostname, "zlib": zlib.crc32(b"a"), "package": pure_package.V,
            "locale": locale.setlocale(locale.LC_ALL, "").split(";")[0], "preload": os.environ.get("LD_PRELOAD"),
            "title": open("/proc/self/cmdline").read().partition("\\0")[0],
        }
    print("to the log")
    return {"event": event}
"""


@pytest.fixture
def musl(tmp_path: Path) -> Path:
    """An image with a CPython on musl, laid out as Alpine's."""
    root = Path(os.environ.get(MUSL) or "/nonexistent")
    found = (
        sorted((root / "usr/bin").glob("python3.[0-9]*[0-9]")) if (root / "lib/ld-musl-x86_64.so.1").exists() else []
    )
    if not found:
        pytest.skip(f"{MUSL} names no directory with usr/bin/python3.N and lib/ld-musl-x86_64.so.1")
    library = f"usr/lib/{found[0].name}"
    executable: dict[str, bytes | str] = {"usr/bin/python3": found[0].read_bytes()}
    executable["lib/ld-musl-x86_64.so.1"] = (root / "lib/ld-musl-x86_64.so.1").read_bytes()
    for shared in (root / "usr/lib").glob("lib*.so*"):
        executable[f"usr/lib/{shared.name}"] = shared.read_bytes()
    copy = tmp_path / "library"
    shutil.copytree(
        root / library, copy, ignore=shutil.ignore_patterns("test", "idlelib", "ensurepip", "__pycache__", "*.a")
    )
    add(executable, copy, library)
    plain = {"app/app.py": HANDLER, f"{library}/site-packages/pure_package.py": "V = 1\n"}
    config = {"Cmd": ["app.handler"], "Env": ["PATH=/usr/bin", "GREETING=from the image"], "WorkingDir": "/app"}
    write_layout(tmp_path / "image", [Files(plain=plain, executable=executable)], config)
    return tmp_path / "image"


def test_a_handler_on_musl_is_served_by_zygotes(daemon: RunningDaemon, musl: Path) -> None:
    digest = upload(daemon, musl)
    judge(daemon, "on-musl", digest, handler="app.handler", runtime="python")
    daemon.wait_line(r"deploy of on-musl: served by Zygotes of the image's Python 3\.")
    answer = daemon.call("on-musl", {"what": "all"})
    assert answer == {
        "musl": True,
        "gettid": 1,
        "threads": [3, [False] * 3],
        "forked": "a thread of the child",
        "child": "1\n",
        "getenv": "from the image",
        "host": "127.0.0.1",
        "localhost": "127.0.0.1",
        "ssl": True,
        "zlib": 3904355907,
        "package": 1,
        "locale": "C.UTF-8",
        "preload": None,
        "title": "sockd: on-musl",
    }, json.dumps(answer)
