"""The demonstration's checks: they accept what is right and refuse what is not."""

from __future__ import annotations

import pytest

from benchmarks.harness.cold import NeverLearned
from benchmarks.harness.worker import running_worker
from demo import run
from demo.checks import FUNCTIONS, WrongAnswer, check_noop, check_page
from demo.failure import EXPECTED, check_log
from demo.images import why_no_images


@pytest.mark.root
def test_a_worker_on_an_older_kernel_says_that_it_has_images() -> None:
    with running_worker({"sandbox": {"kernel": "6.1"}}) as worker:
        assert why_no_images(worker) == ""
        status = worker.json("status")
        assert status["images"]["stored"] == 0
        assert status["kernel"]["images"].startswith("EROFS through loop devices")


def test_a_wrong_answer_is_refused() -> None:
    check_noop({"ok": True})
    with pytest.raises(WrongAnswer):
        check_noop({"ok": False})
    with pytest.raises(WrongAnswer):
        check_page({"statusCode": 200, "body": "Hello, stranger"})


def test_a_log_without_the_traceback_is_refused() -> None:
    check_log("".join(EXPECTED))
    for text in EXPECTED:
        with pytest.raises(WrongAnswer):
            check_log("".join(EXPECTED).replace(text, ""))


def test_the_failing_function_fails_where_the_log_is_expected_to_say() -> None:
    lines = (FUNCTIONS / "failing" / "handler.py").read_text().splitlines()
    assert "total(event)" in lines[9] and EXPECTED[-1] in lines[4]


def test_a_zygote_that_never_comes_is_reported_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never() -> None:
        raise NeverLearned("no verified one holds pandas after 900 s of invocations")

    monkeypatch.setattr(run, "S3Process", lambda **_: never())
    assert run.main() == 1
    assert capsys.readouterr().err.splitlines()[1:] == [
        "demo failed:",
        "no verified one holds pandas after 900 s of invocations",
    ]
