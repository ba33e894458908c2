"""The memory file of an `import`: what the daemon reads of it is checked, and its size is nobody's to change."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from sockd.isolation.farm.control import ZygoteGone, ZygoteRefused
from sockd.isolation.farm.imported import Imported, ImportFile, ImportRequest, Observed
from sockd_zygote import protocol

GOOD = {
    "seconds": 0.5,
    "threads": 1,
    "failed": {},
    "seen": {"missed": ["socks"], "every_variable": True},
    "loaded": [["p", ["p", "p.part", "json"]]],
}


@pytest.fixture
def file() -> Iterator[ImportFile]:
    file = ImportFile(ImportRequest(paths=["/packages/p"], modules=["p"]))
    yield file
    file.close()


def answered(file: ImportFile, report: object) -> Imported:
    data = json.dumps(report).encode()
    os.pwrite(file.fd, data, 0)
    return file.report(len(data))


def test_a_zygote_reads_the_request_and_the_daemon_its_report(file: ImportFile) -> None:
    request = json.loads(os.pread(file.fd, file.request_bytes, 0))
    assert request == {
        "paths": ["/packages/p"],
        "modules": ["p"],
        "pth": [],
        "sitecustomize": "",
        "env": {},
        "open_files": 1024,
        "sys_path": [],
        "directory": "",
        "ours": False,
    }
    report = answered(file, GOOD)
    assert report.seconds == 0.5 and report.seen == Observed(missed=frozenset({"socks"}), every_variable=True)
    assert report.loaded == (("p", frozenset({"p", "p.part", "json"})),)


def test_sockds_own_modules_are_asked_for_by_name() -> None:
    file = ImportFile(ImportRequest(paths=[], modules=["sockd_zygote.program_imports"], ours=True))
    try:
        assert json.loads(os.pread(file.fd, file.request_bytes, 0))["ours"] is True
    finally:
        file.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"seconds": "x"},
        {"threads": None},
        {"failed": []},
        {"threads": float("inf")},
        {"seconds": float("nan")},
        {"seen": {"missed": "socks"}},
        {"seen": {"missed": [1]}},
        {"seen": {"every_variable": 1}},
        {"seen": {"more": []}},
        {"loaded": "p"},
        {"loaded": [["p", [None]]]},
        {"loaded": {"p": 1}},
        {"more": 1},
    ],
)
def test_a_report_of_another_shape_ends_the_zygote(file: ImportFile, wrong: dict[str, Any]) -> None:
    with pytest.raises(ZygoteGone):
        answered(file, {**GOOD, **wrong} if wrong else {})


@pytest.mark.parametrize("count", [None, "5", True, 0, -1, protocol.IMPORT_REPORT_MAX_BYTES + 1, 1.0])
def test_a_length_that_is_none_ends_the_zygote(file: ImportFile, count: object) -> None:
    with pytest.raises(ZygoteGone):
        file.report(count)


def test_neither_end_can_change_its_size(file: ImportFile) -> None:
    for size in (0, protocol.IMPORT_MAX_BYTES * 2):
        with pytest.raises(PermissionError):
            os.truncate(file.fd, size)


def test_a_request_that_is_too_long_is_refused() -> None:
    with pytest.raises(ZygoteRefused, match="limit"):
        ImportFile(ImportRequest(paths=[], modules=["m" * 1100] * 1000))


def test_observations_add_up() -> None:
    first = Observed(missed=frozenset({"a"}), variables=frozenset({"X"}), every_distribution=True)
    later = Observed(missed=frozenset({"b"}), every_variable=True)
    both = first.followed_by(later)
    assert both == Observed(
        missed=frozenset({"a", "b"}), variables=frozenset({"X"}), every_distribution=True, every_variable=True
    )
