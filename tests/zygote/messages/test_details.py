"""What a request brings beside its event."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from sockd_zygote.messages import details
from tests.zygote.handler_process import REPOSITORY

TOLD = {"trace": "Root=1-5759e988-bd862e3fe1be46a994272793", "traceparent": "00-1-2-01", "tracestate": ""}
GROWTH = """
from sockd_zygote.messages import details
def pages():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])
def serve(first):
    for number in range(first, first + 30_000):
        with details.Trace({"trace": f"Root=1-{number:032x}", "traceparent": f"00-{number:032x}-{number:016x}-01"}):
            pass
serve(0)
before = pages()
serve(30_000)
print(pages() - before)
"""


def test_details_are_apart_from_the_event() -> None:
    reported = json.dumps({"trace": "é"}, ensure_ascii=False).encode()
    body = bytes(24) + len(reported).to_bytes(4, "little") + reported + b'{"a": 1}'
    assert details.split(body) == (b'{"a": 1}', {"trace": "é"})


def test_a_trace_is_in_the_environment_for_the_length_of_a_request_also_for_children() -> None:
    names = ("_X_AMZN_TRACE_ID", "TRACEPARENT", "TRACESTATE")
    shown = f"import os; print(*[os.environ.get(name) for name in {names}])"
    with details.Trace(TOLD):
        assert [os.environ.get(name) for name in names] == [TOLD["trace"], "00-1-2-01", None]
        child = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert child.stdout.split() == [TOLD["trace"], "00-1-2-01", "None"]
    child = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert [os.environ.get(name) for name in names] == [None] * 3 and child.stdout.split() == ["None"] * 3


def test_a_function_may_take_the_trace_out_of_its_environment() -> None:
    with details.Trace(TOLD):
        del os.environ["TRACEPARENT"]
    assert "TRACEPARENT" not in os.environ and "_X_AMZN_TRACE_ID" not in os.environ


def test_requests_that_are_part_of_a_trace_leave_nothing_in_memory() -> None:
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert int(done.stdout) < 100  # setenv(3) would keep 3000 pages
