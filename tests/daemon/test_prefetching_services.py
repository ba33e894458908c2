"""Services with an initscript, which fetches their state while their program starts."""

from __future__ import annotations

import pytest

from benchmarks.s3.process import S3Process
from tests.daemon.prefetching import fetching
from tests.daemon.running import RunningDaemon
from tests.daemon.test_services import log_of, row

pytestmark = pytest.mark.root

STATE = b"s" * 300_000
SERVER = """
import http.server, os, sys
sys.path.insert(0, "/opt/sockd/storage_lib")
import sockd_initscript
state = bytes(sockd_initscript.link().recv_msg(0, 5000).view)
print("began with", len(state), "bytes", flush=True)
class Requests(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(state)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Requests).serve_forever()
"""
TOML = """
kind = "service"
command = ["/usr/bin/python3", "server.py"]
network = "none"
service = { port = 8080 }
"""


def test_a_program_begins_with_what_the_script_fetches_while_it_starts(daemon: RunningDaemon) -> None:
    with S3Process() as server, server.client() as client:
        client.make_bucket("data")
        client.put("data", "state", STATE)
        endpoint = server.env()["AWS_ENDPOINT_URL_S3"].partition("//")[2]
        files: dict[str, str | bytes] = {"server.py": SERVER, "sockd.toml": TOML, "init.wasm": fetching("state")}
        script = {"wasm": "init.wasm", "args": "", "endpoints": [endpoint]}
        daemon.deploy("stateful", files, initscript=script, env=server.env())
        client.forget_requests()
        for _ in range(2):
            answer = daemon.request("GET", "/run/stateful/")
            assert (answer.status, answer.body) == (200, STATE), (log_of(daemon, "stateful"), row(daemon, "stateful"))
        (fetched,) = (record for record in client.requests() if record["method"] == "GET")
        assert fetched["path"] == "/data/state"
