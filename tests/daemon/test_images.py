"""Functions in container images: how they are deployed, what their program finds, what goes wrong, and which images stay."""

from __future__ import annotations

import base64
import http.client
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from sockd.code.function_config import FunctionConfig
from sockd.image_functions import image_programs
from sockd.kernel import syscalls
from sockd.kernel.syscalls import MountFlag
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.support.image_layouts import ASK, PYTHON, Files, python_files, write_layout

pytestmark = pytest.mark.root

BOOTSTRAP = f"""#!{PYTHON}
import http.client, json, mmap, os, socket, sys
kept = []
{ASK}def refused(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
    os.remove(path)
    return ""
def seen(event):
    what = (event or {{}}).get("what")
    if what == "map":
        with open(event["path"], "rb") as file:
            kept.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        return kept[-1][0]
    if what == "touch":
        if "port" in event:
            socket.create_connection(("127.0.0.1", event["port"])).recv(1)
        return kept[-1][event["at"]]
    if what == "exit":
        os._exit(3)
    if what == "raise":
        raise KeyError("no")
    if what == "read":
        return open(event["path"]).read()
    if what == "list":
        return sorted(os.listdir(event["path"]))
    if what == "log":
        with open("/dev/stderr", "a") as file:
            print("as web servers do", file=file)
        return None
    if what == "write":
        return refused(event["path"])
    if what == "lookup":
        return socket.gethostbyname(socket.gethostname())
    return {{"argv": sys.argv, "cwd": os.getcwd(), "env": dict(os.environ), "uid": os.getuid(), "event": event,
             "version": open("/version").read()}}
while True:
    headers, event = ask("GET", "invocation/next")
    this = "invocation/" + headers["Lambda-Runtime-Aws-Request-Id"]
    try:
        answer = seen(json.loads(event))
    except KeyError as error:
        ask("POST", this + "/error", json.dumps({{"errorType": "KeyError", "errorMessage": str(error)}}))
    else:
        ask("POST", this + "/response", json.dumps(answer))
"""
CONFIG = {
    "Entrypoint": ["/app/bootstrap"],
    "Cmd": ["module.handler"],
    "Env": ["PATH=/opt/python/bin", "GREETING=from the image", "OTHER=from the image"],
    "WorkingDir": "/app",
    "Volumes": {"/data": {}},
    "User": "app",
}


@pytest.fixture(scope="module")
def python() -> bytes:
    """The layer with an interpreter."""
    return python_files().tar()


@pytest.fixture(scope="module")
def image(daemon: RunningDaemon, python: bytes, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image whose program speaks to the Runtime API; its digest."""
    path = tmp_path_factory.mktemp("image")
    write_layout(path, [python, app("1")], CONFIG)
    return upload(daemon, path)


def app(version: str) -> Files:
    return Files(
        plain={"version": version, "etc/passwd": "root:x:0:0::/:/bin/sh\n"}, executable={"app/bootstrap": BOOTSTRAP}
    )


def upload(daemon: RunningDaemon, layout: Path) -> str:
    """Send a layout as an archive; the digest of its image. Raises: DeployFailed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(layout, ".")
    answer = daemon.manage("POST", "/images?reference=oci:made", packed.getvalue())
    last = json.loads(answer.body.splitlines()[-1])
    if answer.status != 200:  # refused before it was read
        raise DeployFailed(answer.status, last)
    if "error" in last:
        raise DeployFailed(last["status"], last["error"])
    return str(last["result"]["digest"])


def small(daemon: RunningDaemon, path: Path, files: Files, config: Mapping[str, Any]) -> str:
    """The digest of an image without an interpreter."""
    write_layout(path, [files], config)
    return upload(daemon, path)


def deploy(daemon: RunningDaemon, name: str, image: str, **settings: Any) -> dict[str, Any]:
    return daemon.deploy(name, {}, image=image, **{"timeout_s": 10, "memory_mb": 128, **settings})


def test_a_program_runs_as_its_image_says(daemon: RunningDaemon, image: str) -> None:
    deployed = deploy(daemon, "as-it-says", image, env={"GREETING": "from the function"})
    assert deployed["version"] == image.removeprefix("sha256:") and deployed["image"] == image
    answer = daemon.call("as-it-says", {"n": 1})
    assert answer["argv"] == ["/app/bootstrap", "module.handler"] and answer["cwd"] == "/app"
    assert answer["uid"] == 1000 and answer["event"] == {"n": 1}
    env = answer["env"]
    assert (env["GREETING"], env["OTHER"], env["PATH"]) == ("from the function", "from the image", "/opt/python/bin")
    assert (env["HOME"], env["_HANDLER"], env["AWS_LAMBDA_FUNCTION_NAME"]) == ("/tmp", "module.handler", "as-it-says")
    assert not {"PYTHONPATH", "OPENBLAS_NUM_THREADS", "AWS_EXECUTION_ENV"} & env.keys(), "the host's own are not its"


def test_settings_replace_the_entry_point_the_command_and_the_directory(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "replaced", image, command=["other.handler", "-v"], working_directory="/opt")
    answer = daemon.call("replaced")
    assert (answer["argv"], answer["cwd"]) == (["/app/bootstrap", "other.handler", "-v"], "/opt")
    deploy(daemon, "replaced", image, entrypoint=["python3", "/app/bootstrap"])
    assert daemon.call("replaced")["argv"] == ["/app/bootstrap", "module.handler"], "as on AWS, CMD still holds"
    deploy(daemon, "replaced", image, command=[])
    assert daemon.call("replaced")["argv"] == ["/app/bootstrap"]


def test_a_second_request_is_warm(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "warm", image)
    assert [daemon.run("warm").headers["x-sockd-cold"] for _ in range(3)] == ["1", "0", "0"]


def test_an_image_has_the_whole_root_and_nothing_of_the_host(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "alone", image)

    def listed(path: str) -> list[str]:
        found: list[str] = daemon.call("alone", {"what": "list", "path": path})
        return found

    assert {"app", "opt", "version", "dev", "etc", "proc", "tmp", "var"} <= set(listed("/"))
    assert "usr" not in listed("/") or not listed("/usr")
    assert listed("/opt/sockd/sockd_zygote") == listed("/packages") == []
    assert set(listed("/dev")) >= {"null", "zero", "full", "random", "urandom", "fd", "shm", "stdin", "stdout"}
    assert set(listed("/etc")) >= {"resolv.conf", "hosts", "passwd", "group"}


def test_only_tmp_can_be_written(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "read-only", image)
    refused = {
        path: daemon.call("read-only", {"what": "write", "path": path}) for path in ("/x", "/app/x", "/etc/passwd")
    }
    assert set(refused.values()) == {"Read-only file system"}
    assert [daemon.call("read-only", {"what": "write", "path": path}) for path in ("/tmp/x", "/dev/shm/x")] == ["", ""]


def test_a_program_may_log_to_dev_stdout(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "logs", image)
    answer = daemon.run("logs", {"what": "log"})
    assert answer.json is None and daemon.log_of("logs", answer) == "as web servers do\n"


def test_the_sandboxs_user_and_host_are_known_in_an_image(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "known", image)
    passwd = daemon.call("known", {"what": "read", "path": "/etc/passwd"})
    assert passwd.splitlines() == ["root:x:0:0::/:/bin/sh", "sandbox:x:1000:1000:sandbox:/tmp:/bin/sh"]
    assert daemon.call("known", {"what": "lookup"}) == "127.0.0.1"


def test_an_image_whose_etc_is_a_link_has_its_files_and_the_sandboxs(
    daemon: RunningDaemon, python: bytes, tmp_path: Path
) -> None:
    files = Files(
        plain={
            "version": "1",
            "nix/base/etc/passwd": "mine:x:7:7::/:/bin/sh\n",
            "nix/base/etc/app/settings": "of the image",
        },
        executable={"app/bootstrap": BOOTSTRAP},
        links={"etc": "/nix/base/etc"},
    )
    write_layout(tmp_path, [python, files], CONFIG)
    deploy(daemon, "linked-etc", upload(daemon, tmp_path))
    names = daemon.call("linked-etc", {"what": "read", "path": "/etc/passwd"})
    assert names.startswith("mine:x:7:7") and ":x:1000:" in names
    assert daemon.call("linked-etc", {"what": "read", "path": "/etc/app/settings"}) == "of the image"
    assert daemon.call("linked-etc", {"what": "lookup"}).startswith("127.")


def test_an_image_is_shown_by_a_function_that_runs_in_it(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "shown", image)
    shown = daemon.manage("GET", "/images/shown")
    assert (shown.status, shown.json["digest"]) == (200, image)
    assert daemon.manage("GET", "/images/nobody").status == 404
    kept = daemon.manage("DELETE", "/images/shown")
    assert kept.status == 409 and image[:19] in kept.json["errorMessage"] and "shown" in kept.json["errorMessage"]
    assert daemon.manage("DELETE", "/images/nobody").status == 404


@pytest.mark.parametrize("network", ["host", "none"])
def test_the_runtime_api_is_reached_in_each_network(daemon: RunningDaemon, image: str, network: str) -> None:
    deploy(daemon, f"in-{network}", image, network=network)
    assert daemon.call(f"in-{network}", {"n": 2})["event"] == {"n": 2}


def test_errors_and_exits_of_a_program_are_its_functions(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "fails", image)
    raised = daemon.run("fails", {"what": "raise"})
    assert (raised.status, raised.json["errorType"]) == (500, "KeyError")
    ended = daemon.run("fails", {"what": "exit"})
    assert (ended.status, ended.json["errorType"]) == (502, "Runtime.ExitError")
    assert daemon.call("fails", {"n": 3})["event"] == {"n": 3}


ENTRY_POINTS: Sequence[tuple[str, str]] = (
    ("/app/missing", "/app/missing does not exist there"),
    ("missing", "missing does not exist in its PATH (/app:/bin)"),
    ("/app/script", "/app/script exists, but its interpreter /nowhere/sh does not"),
    ("script", "/app/script exists, but its interpreter /nowhere/sh does not"),
    ("/app/rubbish", "/app/rubbish cannot be executed: exec format error"),
    ("/app/windows", "its interpreter /bin/sh\\r (the script's lines end with CR LF, as on Windows) does not"),
    ("", "the first word of the image's entry point is empty"),
    ("/app/plain", "/app/plain may not be executed by the sandbox's user (mode 0644)"),
    ("/closed/script", "/closed/script cannot be reached: /closed is closed to the sandbox's user (mode 0700)"),
    ("/app/below", "/app/below cannot be executed, because its interpreter /closed/sh may not be executed"),
    ("/app", "/app is a directory, not a program"),
)


@pytest.fixture(scope="module")
def broken(daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image without a program that can be run."""
    programs: dict[str, bytes | str] = {"app/script": "#!/nowhere/sh\n", "app/rubbish": b"\1\2\3\4"}
    programs |= {"app/windows": "#!/bin/sh\r\necho\r\n"}
    programs |= {"closed/script": "#!/bin/sh\n", "closed/sh": b"\1\2\3\4", "app/below": "#!/closed/sh\n"}
    files = Files(plain={"app/plain": "text"}, executable=programs, closed=["closed"])
    config = {"Entrypoint": ["/app/missing"], "Env": ["PATH=/app:/bin"]}
    return small(daemon, tmp_path_factory.mktemp("broken"), files, config)


@pytest.mark.parametrize(("entry_point", "words"), ENTRY_POINTS)
def test_an_entry_point_that_cannot_be_run_is_named(
    daemon: RunningDaemon, broken: str, entry_point: str, words: str
) -> None:
    deploy(daemon, "broken", broken, entrypoint=[entry_point])
    answer = daemon.run("broken")
    assert (answer.status, answer.json["errorType"]) == (500, "Runtime.InvalidEntrypoint")
    assert words in answer.json["errorMessage"]
    assert words in daemon.log_of("broken", answer)


def test_a_command_that_is_too_long_is_named(daemon: RunningDaemon, tmp_path: Path) -> None:
    config = {"Entrypoint": ["/rubbish", "x" * 140_000]}
    deploy(daemon, "long", small(daemon, tmp_path, Files(executable={"rubbish": b"\1\2\3\4"}), config))
    assert "/rubbish cannot be executed: its arguments" in daemon.run("long").json["errorMessage"]


def test_a_working_directory_that_is_not_there_is_named(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "nowhere", image, working_directory="/nowhere")
    answer = daemon.run("nowhere").json
    assert answer["errorType"] == "Runtime.InvalidWorkingDir" and "/nowhere" in answer["errorMessage"]


def test_a_working_directory_that_is_closed_is_named(daemon: RunningDaemon, broken: str) -> None:
    deploy(daemon, "closed", broken, entrypoint=["/app/script"], working_directory="/closed")
    answer = daemon.run("closed").json
    assert answer["errorType"] == "Runtime.InvalidWorkingDir"
    assert "/closed is closed to the sandbox's user (mode 0700)" in answer["errorMessage"]


def test_an_image_with_nothing_to_run_is_refused_when_it_is_deployed(daemon: RunningDaemon, tmp_path: Path) -> None:
    empty = small(daemon, tmp_path, Files(plain={"a": "b"}), {})
    with pytest.raises(DeployFailed, match="neither ENTRYPOINT nor CMD"):
        deploy(daemon, "nothing", empty)
    with pytest.raises(DeployFailed, match="this worker has no image"):
        deploy(daemon, "nothing", f"sha256:{'0' * 64}")
    with pytest.raises(DeployFailed, match="a worker fetches images from registries"):
        deploy(daemon, "nothing", "oci:/etc")


def test_what_is_ignored_is_said_when_it_is_deployed(daemon: RunningDaemon, image: str) -> None:
    headers = {"x-sockd-overrides": json.dumps({"image": image, "python": "3.99", "readiness_path": "/ready"})}
    lines = daemon.manage("PUT", "/functions/said", b"PK\5\6" + bytes(18), headers).body.decode()
    assert "USER app is ignored" in lines and "3.99" in lines and "VOLUME /data is ignored" in lines
    assert "readiness_path is not used" in lines


def test_a_published_version_keeps_its_image(daemon: RunningDaemon, image: str, python: bytes, tmp_path: Path) -> None:
    deploy(daemon, "versioned", image)
    daemon.manage("POST", "/functions/versioned/versions", b"{}")
    write_layout(tmp_path, [python, app("2")], CONFIG)
    second = upload(daemon, tmp_path)
    deploy(daemon, "versioned", second)
    assert daemon.call("versioned")["version"] == "2"
    assert daemon.call("versioned:1")["version"] == "1"
    kept = daemon.manage("DELETE", f"/images/{image}")
    assert kept.status == 409 and "versioned" in kept.json["errorMessage"]
    back = daemon.manage("POST", "/functions/versioned/rollback", b"{}")
    assert (back.status, back.json["digest"]) == (200, image.removeprefix("sha256:")), (
        "the image's, as there is no code"
    )
    assert daemon.call("versioned")["version"] == "1"
    deploys = daemon.manage("GET", "/functions/versioned/versions").json["deploys"]
    assert {each["digest"] for each in deploys} == {each.removeprefix("sha256:") for each in (image, second)}


def test_an_image_that_no_function_needs_can_be_removed(daemon: RunningDaemon, tmp_path: Path) -> None:
    digest = small(daemon, tmp_path, Files(plain={"only": "here"}), {"Cmd": ["/only"]})
    shown = daemon.manage("GET", f"/images/{digest}").json
    assert shown["config"]["cmd"] == ["/only"] and shown["functions"] == []
    assert daemon.manage("DELETE", f"/images/{digest[:19]}").json["digest"] == digest
    assert daemon.manage("GET", f"/images/{digest}").status == 404


def test_an_image_is_unmounted_with_its_last_function(daemon: RunningDaemon, python: bytes, tmp_path: Path) -> None:
    write_layout(tmp_path, [python, app("3")], CONFIG)
    digest = upload(daemon, tmp_path)
    for name in ("one", "two"):
        deploy(daemon, name, digest)
        daemon.call(name)

    def is_mounted() -> bool:
        return bool(daemon.manage("GET", f"/images/{digest}").json["mounted"])

    assert is_mounted()
    daemon.remove("one")
    assert is_mounted() and daemon.call("two")["version"] == "3"
    since = daemon.mark
    daemon.remove("two")
    daemon.wait_line(f"image {digest[:19]} is unmounted", since=since)
    assert not is_mounted()


WEB_SERVER = f"""#!{PYTHON}
import http.server, json, os, sys, threading, time
begun = time.monotonic()
class Requests(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        if self.path == "/exit":
            os._exit(5)
        if self.path == "/silent" or self.path == "/tired" and time.monotonic() > begun + 3:
            threading.Event().wait()
        if self.path == "/hints":
            self.wfile.write(b"HTTP/1.1 103 Early Hints\\r\\nlink: </a.css>\\r\\n\\r\\n")
        if self.path in ("/short", "/quits"):
            self.send_response(200)
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b"part")
            self.wfile.flush()
            self.close_connection = True
            if self.path == "/quits":
                os._exit(6)
            return
        told = {{"method": self.command, "path": self.path, "headers": self.headers.items(),
                "body": self.rfile.read(int(self.headers.get("content-length", 0))).decode(), "port": os.environ["PORT"]}}
        data = json.dumps(told).encode()
        self.send_response({{"/teapot": 418, "/broken": 503, "/tired": 503}}.get(self.path, 200))
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("set-cookie", "a=b")
        self.send_header("set-cookie", "c=d")
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_POST = do_PUT = do_DELETE = answer
    def log_message(self, *args):
        pass
at = os.environ.get("AT", "127.0.0.1"), int([*sys.argv, os.environ["PORT"]][1])
http.server.ThreadingHTTPServer(at, Requests).serve_forever()
"""


@pytest.fixture(scope="module")
def web(daemon: RunningDaemon, python: bytes, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with a web server; its digest."""
    path = tmp_path_factory.mktemp("web")
    config = {"Cmd": ["/server"], "Env": ["PATH=/opt/python/bin"], "ExposedPorts": {"9000/tcp": {}}}
    write_layout(path, [python, Files(executable={"server": WEB_SERVER})], config)
    return upload(daemon, path)


@pytest.mark.parametrize("network", ["host", "none"])
def test_requests_are_forwarded_to_a_web_server(daemon: RunningDaemon, web: str, network: str) -> None:
    deploy(daemon, "web", web, app_port=8080, network=network)
    claimed = {"x-forwarded-prefix": "/not/so", "x-amzn-lambda-context": "{}"}
    answer = daemon.request("PUT", "/run/web/some/path?q=1", b"hello", {"x-own": "value", **claimed})
    assert answer.status == 200, answer
    told = answer.json
    assert (told["method"], told["path"], told["body"]) == ("PUT", "/some/path?q=1", "hello")
    headers = {name.lower(): value for name, value in told["headers"]}
    assert (headers["x-own"], headers["x-forwarded-prefix"]) == ("value", "/run/web")
    assert json.loads(headers["x-amzn-lambda-context"])["env_config"]["function_name"] == "web"
    assert len(headers) == len(told["headers"]), "what a client claims is dropped"
    assert (told["port"] == "8080") == (network != "host"), "on the host's network ports are shared"
    assert daemon.request("GET", "/run/web/teapot").status == 418
    assert daemon.request("GET", "/run/web/hints").json["path"] == "/hints"


def test_a_web_server_may_listen_on_port_80(daemon: RunningDaemon, web: str) -> None:
    deploy(daemon, "web-80", web, command=["/server", "80"], app_port=80, network="none")
    answer = daemon.request("GET", "/run/web-80/")
    assert (answer.status, answer.json["port"]) == (200, "80"), answer


def test_events_reach_a_web_server_as_requests(daemon: RunningDaemon, web: str) -> None:
    deploy(daemon, "web-events", web, app_port=8080, network="none")
    event = {
        "version": "2.0",
        "rawPath": "/a",
        "rawQueryString": "b=c",
        "requestContext": {"http": {"method": "POST"}},
        "body": "d",
    }
    answer = json.loads(daemon.manage("POST", "/functions/web-events/invoke", json.dumps(event).encode()).body)
    told = json.loads(answer["body"])
    assert (told["method"], told["path"], told["body"]) == ("POST", "/a?b=c", "d")
    assert (answer["statusCode"], answer["cookies"], answer["isBase64Encoded"]) == (200, ["a=b", "c=d"], False)
    other = json.loads(daemon.manage("POST", "/functions/web-events/invoke", b'{"n": 1}').body)
    assert (other["method"], other["path"], other["body"]) == ("POST", "/events", '{"n": 1}')


def test_an_image_with_awss_web_adapter_needs_no_setting(daemon: RunningDaemon, python: bytes, tmp_path: Path) -> None:
    files = Files(executable={"server": WEB_SERVER, "opt/extensions/lambda-adapter": "not run"})
    write_layout(tmp_path, [python, files], {"Cmd": ["/server"], "Env": ["PATH=/opt/python/bin", "PORT=9000"]})
    deploy(daemon, "adapted", upload(daemon, tmp_path), network="none")
    assert daemon.request("GET", "/run/adapted/x").json["port"] == "9000"


@pytest.mark.parametrize(("network", "words"), [("host", "listen on $PORT"), ("none", "asked on port 8080")])
def test_a_deploy_says_where_a_web_server_is_asked(network: Literal["host", "none"], words: str) -> None:
    assert words in image_programs.port_words(FunctionConfig(image="i", app_port=8080, network=network))


@pytest.mark.parametrize(
    ("port", "env", "path", "words"),
    [
        (
            3000,
            {},
            "/",
            "GET / on port 3000 was refused, as nobody listens there. The program listens on 8080. Set app_port",
        ),
        (
            *(8080, {"AWS_LWA_READINESS_CHECK_PORT": "1"}, "/"),
            "GET / on port 1 was refused, as nobody listens there. The program listens on 8080. It must listen on $PORT",
        ),
        (8080, {}, "/broken", "GET /broken on port 8080 has status 503, and not one below 500. Set readiness_path"),
        (8080, {}, "/tired", "GET /tired on port 8080 has status 503, and not one below 500. Set readiness_path"),
        (8080, {}, "/silent", "GET /silent on port 8080 has no answer. Set readiness_path"),
        (
            *(3000, {"AWS_LWA_READINESS_CHECK_PROTOCOL": "tcp"}, "/"),
            "a connection to port 3000 was refused, as nobody listens there. The program listens on 8080. Set app_port",
        ),
    ],
)
def test_an_error_says_what_a_web_server_that_is_not_ready_was_asked(
    daemon: RunningDaemon, web: str, port: int, env: dict[str, str], path: str, words: str
) -> None:
    settings = {"app_port": port, "readiness_path": path, "env": env, "init_timeout_s": 4}
    deploy(daemon, "web-silent", web, command=["/server", "8080"], network="none", **settings)
    answer = daemon.request("GET", "/run/web-silent/")
    assert (answer.status, answer.json["errorType"]) == (500, "WebServer.NotReady")
    message = answer.json["errorMessage"]
    assert message.startswith("the web server was not ready after 3.") and words in message
    is_heard = path != "/silent"  # else the first request lasts until the deadline
    assert ("sockd waits for the web server: " in daemon.log_of("web-silent", answer)) == is_heard


def test_an_app_in_an_image_is_refused(daemon: RunningDaemon, web: str) -> None:
    headers = {"x-sockd-overrides": json.dumps({"image": web, "app": "wsgi"})}
    answer = daemon.manage("PUT", "/functions/web-app", b"PK\5\6" + bytes(18), headers)
    assert "start a web server in the image" in answer.body.decode()
    assert daemon.manage("GET", "/functions/web-app").status == 404


def test_a_web_server_without_its_setting_is_recognized(daemon: RunningDaemon, web: str) -> None:
    settings = {"image": web, "env": {"PORT": "9000"}, "network": "none", "init_timeout_s": 4}
    headers = {"x-sockd-overrides": json.dumps(settings)}
    lines = daemon.manage("PUT", "/functions/web-unset", b"PK\5\6" + bytes(18), headers).body.decode()
    assert "the image exposes port 9000: a web server there needs app_port = 9000" in lines
    refused = json.loads(daemon.manage("POST", "/functions/web-unset/debug", "{}").body)["result"]
    assert refused["status"] == 400 and b"runs in a container image" in base64.b64decode(refused["body"])
    answer = daemon.request("GET", "/run/web-unset/")
    assert answer.json["errorType"] == "Sandbox.Timedout"
    assert "It listens on 9000: a web server needs app_port" in daemon.log_of("web-unset", answer)


def test_an_error_says_that_a_web_server_listens_at_another_address(daemon: RunningDaemon, web: str) -> None:
    env = {"AT": "127.0.0.2"}
    deploy(daemon, "web-else", web, app_port=8080, network="none", env=env, init_timeout_s=2)
    answer = daemon.request("GET", "/run/web-else/")
    assert "listens on this port, but not at 127.0.0.1" in answer.json["errorMessage"]


@pytest.mark.parametrize(
    ("path", "words"), [("short", "WebServer.NoAnswer: the web server on port 8080 broke"), ("quits", "exit status 6")]
)
def test_an_answer_that_a_web_server_breaks_off_is_an_error(
    daemon: RunningDaemon, web: str, path: str, words: str
) -> None:
    deploy(daemon, f"web-{path}", web, app_port=8080, network="none")
    with pytest.raises(http.client.IncompleteRead):
        daemon.request("GET", f"/run/web-{path}/{path}")
    after = daemon.request("GET", f"/run/web-{path}/again")
    assert (after.status, after.headers["x-sockd-cold"]) == (200, str(int(path == "quits")))
    log = json.dumps(daemon.logs(f"web-{path}"))
    assert words in log, log
    event = {"requestContext": {"http": {"method": "GET"}}, "rawPath": f"/{path}"}
    invoked = daemon.manage("POST", f"/functions/web-{path}/invoke", json.dumps(event).encode())
    assert invoked.json["errorType"] == words.partition(":")[0] or words in invoked.json["errorMessage"]


def test_a_server_that_may_start_late_is_waited_for_by_its_request(daemon: RunningDaemon, web: str) -> None:
    env = {"AWS_LWA_ASYNC_INIT": "true"}
    deploy(daemon, "web-late", web, app_port=8080, network="none", env=env, timeout_s=2, readiness_path="/silent")
    answer = daemon.request("GET", "/run/web-late/")
    assert (answer.status, answer.json["errorType"]) == (500, "WebServer.NotReady")
    assert answer.json["errorMessage"].endswith("raise timeout_s")


def test_a_web_server_that_ends_ends_its_sandbox(daemon: RunningDaemon, web: str) -> None:
    deploy(daemon, "web-ends", web, app_port=8080, network="none")
    ended = daemon.request("GET", "/run/web-ends/exit")
    assert (ended.status, ended.json["errorType"]) == (502, "Runtime.ExitError")
    assert daemon.request("GET", "/run/web-ends/again").status == 200


def test_a_state_directory_on_a_tmpfs_is_told_before_a_local_image_is_received(tmp_path: Path) -> None:
    syscalls.mount("tmpfs", str(tmp_path), "tmpfs", MountFlag.NOSUID | MountFlag.NODEV, "size=64m")
    try:
        daemon = RunningDaemon.start(tmp_path / "state", "")
        try:
            answer = daemon.manage("POST", "/images?reference=oci:local", b"an archive that nobody reads")
            assert (answer.status, answer.json["errorType"]) == (503, "Images.Unavailable"), "no progress was answered"
            assert "no tmpfs" in answer.json["errorMessage"]
        finally:
            daemon.terminate()
            daemon.close()
    finally:
        syscalls.umount(str(tmp_path))
