"""Failures by function, type and line: counted, dated and bounded."""

from __future__ import annotations

from sockd.observe.failure_groups import FailureGroups, FailureKey, failure_key, line_of

OWN = '  File "/var/task/app/jobs.py", line 12, in run\n    load()\n'
INNER = '  File "/var/task/app/store.py", line 7, in load\n    raise KeyError(1)\n'
PACKAGE = '  File "/usr/lib/python3/site-packages/requests/api.py", line 99, in get\n    raise X\n'
VENDORED = '  File "/var/task/site-packages/requests/api.py", line 99, in get\n    raise X\n'


def test_fifty_failures_of_one_line_are_one_group_with_a_count_and_both_moments() -> None:
    groups = FailureGroups()
    for number in range(50):
        key = failure_key("f", "KeyError", [OWN, INNER])
        groups.add(key, 1000 + number, bytes([number]), f"message {number}")
    groups.add(failure_key("f", "KeyError", [OWN]), 900, b"x", "another line")
    groups.add(failure_key("g", "KeyError", [OWN, INNER]), 2000, b"y", "another function")
    first, second, third = groups.last(10)
    assert (first.key.function, third.key.line) == ("g", "app/jobs.py:12")
    assert second.key == FailureKey("f", "KeyError", "app/store.py:7")
    assert (second.count, second.first_ns, second.last_ns) == (50, 1000, 1049)
    assert (second.request_id, second.message) == (bytes([49]), "message 49")
    assert [group.key.function for group in groups.last(10, "f")] == ["f", "f"]
    assert len(groups.last(2)) == 2


def test_the_line_is_the_innermost_of_the_function_s_own_code() -> None:
    assert line_of([OWN, INNER, PACKAGE]) == "app/store.py:7"
    assert line_of([OWN, VENDORED]) == "app/jobs.py:12"
    assert line_of([PACKAGE]) == "/usr/lib/python3/site-packages/requests/api.py:99"
    assert line_of([OWN + INNER]) == "app/store.py:7"
    assert line_of([]) == "" == line_of(["at handler (/app/index.js:3:5)"])


def test_ever_new_types_push_out_their_own_function_s_groups_alone() -> None:
    groups = FailureGroups(most=10, most_each=5)
    groups.add(FailureKey("quiet", "KeyError", ""), 1, b"", "")
    for number in range(100):
        groups.add(FailureKey("floods", f"E{number}", ""), 2 + number, b"", "")
    assert [group.key.error_type for group in groups.last(99)] == ["E99", "E98", "E97", "E96", "E95", "KeyError"]
    for number in range(100):
        groups.add(FailureKey(f"f{number}", "E", ""), 200 + number, b"", "")
    assert len(groups.last(99)) == 10
    groups.forget("f99")
    groups.forget("f99")
    assert len(groups.last(99)) == 9


def test_what_is_kept_of_a_stranger_s_text_is_bounded() -> None:
    groups = FailureGroups()
    groups.add(failure_key("f", "T" * 1000, []), 1, b"", "m" * 10_000)
    (group,) = groups.last(1)
    assert (len(group.key.error_type), len(group.message)) == (120, 300)
