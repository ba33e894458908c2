"""Errors in AWS's words: their names, a bound, and what helps who misses a module."""

from __future__ import annotations

import json
import linecache
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from sockd_zygote.messages import errors
from sockd_zygote.protocol import FAILED_MAX_BYTES

REPOSITORY = Path(__file__).parents[3]


def describe(error: BaseException) -> dict[str, Any]:
    try:
        raise error
    except BaseException as raised:
        return dict(json.loads(errors.describe(raised)))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.HandlerNotFound("x"), "Runtime.HandlerNotFound"),
        (errors.MarshalError("x"), "Runtime.MarshalError"),
        (errors.InvalidEvent("x"), "InvalidRequestContentException"),
        (ValueError("x"), "ValueError"),
        (KeyboardInterrupt("x"), "KeyboardInterrupt"),
    ],
)
def test_errors_have_awss_names(error: BaseException, kind: str) -> None:
    assert describe(error)["errorType"] == kind


def test_a_description_has_a_bound() -> None:
    class Deep(Exception):
        pass

    def fall(depth: int) -> None:
        if not depth:
            raise Deep("\0" * 10_000_000)
        fall(depth - 1)

    with pytest.raises(Deep) as caught:
        fall(500)
    described = errors.describe(caught.value)
    assert len(described) <= FAILED_MAX_BYTES
    assert len(json.loads(described)["stackTrace"]) <= errors.MAX_STACK + 1


def test_notes_follow_the_stack_of_an_error_and_of_what_it_came_from() -> None:
    error, cause = ValueError("v"), KeyError("k")
    error.add_note("while row 7\nwas read")
    cause.add_note("of the index")
    error.__cause__ = cause
    stack = describe(error)["stackTrace"]
    assert stack[1:3] == ["while row 7\n", "was read\n"]
    assert stack[-2:] == ["KeyError: 'k'\n", "of the index\n"]
    error.__notes__ = 7  # type: ignore[assignment]
    assert "7" in [line.strip() for line in describe(error)["stackTrace"]]
    error.__notes__ = ["note"] * 500
    assert len(json.loads(errors.describe(error))["stackTrace"]) <= 2 * errors.MAX_STACK


def test_a_syntax_error_is_reported_with_its_file_line_and_source(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(SyntaxError) as caught:
        compile((tmp_path / "mine.py").read_text(), str(tmp_path / "mine.py"), "exec")
    caught.value.add_note("a note")
    described = json.loads(errors.describe(caught.value))
    place = [f'  File "{tmp_path}/mine.py", line 2\n', "    def f(:\n", "          ^\n", "a note\n"]
    assert described["stackTrace"][-4:] == place
    assert described["errorMessage"] == "invalid syntax (mine.py, line 2)"


def test_an_error_without_a_text_is_described() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(Mute())["errorMessage"] == "<the error's text cannot be made: RuntimeError>"
    assert describe(ValueError("\udc80"))["errorMessage"] == "\udc80"


def test_a_missing_module_is_reported_with_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleNotFoundError("No module named 'x'", name="x")
    assert (
        describe(missing)["errorMessage"]
        == "No module named 'x' (no packages: the function declares none, as in requirements.txt)"
    )
    monkeypatch.setattr(sys, "path", ["/packages/numpy-2.0-0123456789ab", "/packages/a-b-1.0-0123456789ab", "/usr/lib"])
    assert describe(missing)["errorMessage"] == "No module named 'x' (installed: a-b-1.0, numpy-2.0)"
    monkeypatch.setattr(errors, "_in_image", False)
    errors.become_images()
    assert describe(missing)["errorMessage"] == "No module named 'x' (the image does not have it)"


@pytest.mark.parametrize("text", ["x", "\0", "\U0001f600", "\udc80", '"', "é\0x"])
def test_a_long_text_is_cut_with_a_mark_and_the_innermost_frames_are_reported(text: str) -> None:
    stack = [f"line {n} {text * n}\n" for n in range(300)]
    encoded = errors.encode("K" * 1000, text * 200_000, stack)
    reported = json.loads(encoded)
    assert len(encoded) <= FAILED_MAX_BYTES
    kept, _, rest = reported["errorMessage"].partition(" [cut: ")
    assert (text * 200_000).startswith(kept) and rest == f"{len(text) * 200_000 - len(kept)} more characters]"
    assert len(kept) >= errors.MESSAGE_BYTES // 12 // 2
    assert reported["stackTrace"][-1] == stack[-1][: errors.MAX_LINE]
    assert reported["stackTrace"][0] == errors.LEFT_OUT % (300 - len(reported["stackTrace"]) + 1)
    assert reported["errorType"] == "K" * 200


def test_what_fits_is_reported_whole() -> None:
    assert json.loads(errors.encode("E", "m" * 10_000, ["a\n", "b\n"])) == {
        "errorMessage": "m" * 10_000,
        "errorType": "E",
        "stackTrace": ["a\n", "b\n"],
    }


def test_the_exceptions_that_it_was_raised_from_follow_the_stack() -> None:
    def fail() -> None:
        try:
            try:
                raise KeyError("missing")
            except KeyError as error:
                raise ValueError("no such row") from error
        except ValueError:
            raise RuntimeError("no page")  # noqa: B904 - the context is what is asked about

    with pytest.raises(RuntimeError) as caught:
        fail()
    answer = json.loads(errors.describe(caught.value))
    assert (answer["errorType"], answer["errorMessage"]) == ("RuntimeError", "no page")
    stack = "".join(answer["stackTrace"])
    own, handled, cause = stack.split("\nThe exception above was raised ")
    assert 'raise RuntimeError("no page")' in own
    assert handled.startswith("while this one was handled:")
    assert "ValueError: no such row\n" in handled
    assert cause.startswith("from this one:")
    assert cause.endswith("KeyError: 'missing'\n")


def test_an_exception_that_hides_its_context_is_reported_alone() -> None:
    def fail() -> None:
        try:
            raise KeyError("missing")
        except KeyError:
            raise ValueError("hidden") from None

    with pytest.raises(ValueError, match="hidden") as caught:
        fail()
    assert "KeyError" not in "".join(json.loads(errors.describe(caught.value))["stackTrace"])


def test_the_members_of_a_group_follow_the_stack() -> None:
    group = ExceptionGroup("two", [ValueError("first"), ExceptionGroup("inner", [KeyError("second")])])
    stack = "".join(describe(group)["stackTrace"])
    assert stack.count("| ValueError: first\n") == 1
    assert stack.count("| KeyError: 'second'\n") == 1


def test_endless_causes_have_a_bound() -> None:
    error = ValueError("\0" * 1000)
    for _ in range(5000):
        error, cause = ValueError("\0" * 1000), error
        error.__cause__ = cause
    described = errors.describe(error)
    assert len(described) <= FAILED_MAX_BYTES
    assert any("left out" in line for line in json.loads(described)["stackTrace"])


@pytest.mark.parametrize("count", [2, 3000])
def test_of_many_causes_the_first_of_all_is_reported_and_those_between_are_counted(count: int) -> None:
    error: Exception = KeyError("root")
    for number in range(count - 1, -1, -1):
        error, cause = ValueError(f"number {number}"), error
        error.__cause__ = cause
    stack = json.loads(errors.describe(error))["stackTrace"]
    assert stack[-2:] == [errors.CAUSE, "KeyError: 'root'\n"]
    reported = sum(line.startswith("ValueError: number ") for line in stack)
    left_out = [errors.LEFT_OUT_CAUSES % (count - 1 - reported)] if count > 2 else []
    assert reported and [line for line in stack if "left out" in line] == left_out


def test_a_cause_with_a_long_stack_leaves_room_for_the_first_of_all() -> None:
    def fall(depth: int) -> None:
        if depth:
            step(depth - 1)
        raise KeyError("deep")

    def step(depth: int) -> None:
        fall(depth)

    def outer() -> None:
        try:
            fall(200)
        except KeyError as error:
            raise ValueError("outer") from error

    with pytest.raises(ValueError, match="outer") as caught:
        outer()
    stack = json.loads(errors.describe(caught.value))["stackTrace"]
    assert stack[-1] == "KeyError: 'deep'\n" and 'raise KeyError("deep")' in stack[-2]
    assert len(stack) < errors.MAX_STACK


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        ("valu", "name 'valu' is not defined. Did you mean: 'value'?"),
        ("value.emcode", "'str' object has no attribute 'emcode'. Did you mean: 'encode'?"),
        ("zzzzzzzzzz", "name 'zzzzzzzzzz' is not defined"),
    ],
)
def test_what_python_suggests_is_reported(source: str, reported: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        try:
            raise KeyError("context")
        except KeyError:
            eval(source, {"value": "text"})
    except Exception as error:
        described = json.loads(errors.describe(error))
        assert isinstance(error.__context__, KeyError), "it is as it was"
    assert described["errorMessage"] == reported
    assert capsys.readouterr().err == ""


def test_an_error_that_cannot_be_read_has_its_stack() -> None:
    class Hostile(Exception):
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    reported = describe(Hostile())
    assert (reported["errorType"], reported["errorMessage"]) == ("Hostile", "<the error cannot be read: RuntimeError>")
    assert "test_errors.py" in reported["stackTrace"][-1]


def test_what_to_do_about_a_handler_is_of_its_kind_of_deploy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert errors.set_handler() == "set handler in sockd.toml"
    monkeypatch.setattr(errors, "_in_image", True)
    assert "--handler" in errors.set_handler()


def test_it_needs_no_import_and_leaves_none() -> None:
    code = (
        "import sys; from sockd_zygote.messages import errors; before = set(sys.modules)\n"
        "class Watch:\n def find_spec(self, name, *_): raise AssertionError(name)\n"
        "sys.meta_path.insert(0, Watch())\n"
        "try: {}['a'] + 1\n"
        "except KeyError as error: reported = errors.describe(error)\n"
        "assert set(sys.modules) == before, set(sys.modules) ^ before\n"
        "assert 'traceback' not in before; print(reported.decode())"
    )
    start = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", start + code], capture_output=True, text=True)
    assert not run.stderr
    assert json.loads(run.stdout)["errorType"] == "KeyError"


def test_lines_that_a_function_notes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def f():\n    raise ValueError('made')\n"
    monkeypatch.setitem(linecache.cache, "<made>", (len(source), None, source.splitlines(keepends=True), "<made>"))
    space: dict[str, Any] = {}
    exec(compile(source, "<made>", "exec"), space)
    with pytest.raises(ValueError, match="made") as caught:
        space["f"]()
    assert "raise ValueError('made')" in json.loads(errors.describe(caught.value))["stackTrace"][-1]


def test_frames_of_the_event_loop_that_this_runtime_runs_are_left_out() -> None:
    loop = [f"{errors.LOOP}{name}.py" for name in ("runners", "base_events", "tasks")]
    files = [errors.__file__, *loop[:2], "/var/task/a.py", loop[2]]
    stack = traceback.StackSummary.from_list([traceback.FrameSummary(file, 1, "f") for file in files])
    assert [frame.filename for frame in errors.users_frames(stack)] == files[3:]
    assert [frame.filename for frame in errors.users_frames(stack[1:])] == files[1:], "of a loop that the function runs"
