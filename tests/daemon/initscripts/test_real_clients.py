"""Pages of a list by boto3, and a GET by `requests`, of a function that brings these packages: what a script has fetched is what
the network gives."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from benchmarks.s3.process import S3Process
from tests.daemon.prefetching import patient, sources, trace
from tests.daemon.running import RunningDaemon
from tests.initscripts.builds import build_text
from tests.support.web_server import BODY, web_server

pytestmark = pytest.mark.root

PACKAGES = (
    *("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "six"),
    *("requests", "urllib3", "idna", "certifi", "charset_normalizer"),
)
DATA = ("endpoints", "partitions", "sdk-default-configuration", "_retry", "s3")
"""What a client of S3 needs of botocore's data, which are 25 MB."""
CODE = """
import boto3, requests

def f(event):
    client = boto3.client("s3")
    found = []
    for page in client.get_paginator("list_objects_v2").paginate(**event["list"]):
        found.append([[entry["Key"], entry["Size"]] for entry in page["Contents"]])
        found.append([page["KeyCount"], page["IsTruncated"], page["MaxKeys"]])
    response = requests.get(event["url"])
    return [found, response.status_code, response.headers["X-Own"], response.json()]
"""
SCRIPT = """
#include "sockd_s3.h"

SOCKD_EXPORT void boot(void) {
    sockd_str event = sockd_input(), none = SOCKD_STR(""), token = none;
    int32_t s3 = sockd_open(SOCKD_STR("s3:"));
    int32_t web = sockd_open(sockd_json_string(event, "web"));
    int64_t page = 0;
    int more;
    sockd_reply reply;
    sockd_send(web, 9, SOCKD_STR("GET /a?b=c"), none);
    do {
        sockd_str prefix = sockd_json_string(sockd_json_find(event, "list"), "Prefix");
        sockd_s3_list_page(s3, page, SOCKD_STR("data"), prefix, token, none, SOCKD_STR("2"), none);
        if (sockd_pass_reply(s3, page++, &reply)) break;
        sockd_str rest = sockd_read(reply);
        more = sockd_xml_next(&rest, SOCKD_STR("NextContinuationToken"), &token);
    } while (more);
    sockd_pass(web, 9);
}
"""
KEYS = ("d/a", "d/b c+%20", "d/ä", "d/e/f", "d/g")


def packages() -> dict[str, str | bytes]:
    """The files of PACKAGES, as they are installed here."""
    found: dict[str, str | bytes] = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        origin = Path(spec.origin)
        files = [origin] if not spec.submodule_search_locations else sorted(origin.parent.rglob("*"))
        for file in files:
            path = file.relative_to(origin.parent if len(files) == 1 else origin.parent.parent)
            if file.is_file() and file.suffix not in (".pyc", ".so") and is_needed(path):
                found[str(path)] = file.read_bytes()
    return found


def is_needed(path: Path) -> bool:
    return path.parts[:2] != ("botocore", "data") or path.parts[2].partition(".")[0] in DATA


def test_pages_and_gets_of_the_real_packages_are_served(daemon: RunningDaemon) -> None:
    script = build_text(SCRIPT)
    with S3Process() as server, web_server() as web:
        with server.client() as client:
            client.make_bucket("data")
            for key in KEYS:
                client.put("data", key, b"1" * len(key))
        daemon.deploy(
            "real",
            {**packages(), "f.py": CODE, "init.wasm": script},
            initscript={"wasm": "init.wasm"},
            env={**patient(server), "SOCKD_STORAGE_REQUESTS": "1"},
            memory_mb=256,
            timeout_s=60,
        )
        asked = {"Bucket": "data", "Prefix": "d/", "PaginationConfig": {"PageSize": 2}}
        event = {"list": asked, "web": web.url, "url": f"{web.url}/a?b=c"}
        cold = daemon.run("real", event)
        with server.client() as client:
            client.forget_requests()
        warm = daemon.run("real", event)
    assert cold.json == warm.json, daemon.log_of("real", cold)
    pages, *response = warm.json
    assert [key for page in pages[::2] for key, _ in page] == sorted(KEYS) and len(pages) == 6
    assert response == [200, "a", {"name": "value"}] and BODY == b'{"name": "value"}'
    assert (cold.headers["x-sockd-cold"], warm.headers["x-sockd-cold"]) == ("1", "0")
    assert sources(trace(daemon, cold)) == ["region"] * 4
    assert len(web.lines) == 2, "one GET of the script, and one of the request that has none"
