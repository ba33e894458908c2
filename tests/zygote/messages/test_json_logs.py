"""What a function logs as JSON, in AWS's layout: by its logger, level by level, with what only AWS's formatter adds."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.client.cli.serving import REPOSITORY


def logged(code: str, level: str = "INFO") -> list[dict[str, Any]]:
    """The lines of a program that has the layout, and logs."""
    program = (
        "from sockd_zygote.messages import log_layout\nlog_layout.apply_json()\nimport logging\nlog = logging.getLogger('mine')\n"
        + code
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env={"AWS_LAMBDA_LOG_FORMAT": "JSON", "AWS_LAMBDA_LOG_LEVEL": level},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_a_line_is_an_object_with_awss_members() -> None:
    (line,) = logged("log.info('it is %s\\nor %s', 'ü', {})")
    assert (line["level"], line["message"], line["logger"]) == ("INFO", "it is ü\nor {}", "mine")
    assert set(line) == {"timestamp", "level", "message", "logger", "requestId"}
    assert len(line["timestamp"]) == len("2026-01-31T12:00:00.000Z") and line["requestId"].count("-") == 4


def test_an_exception_and_extras_are_members_and_cannot_take_the_place_of_others() -> None:
    code = (
        "try: {}['k']\nexcept KeyError: log.exception('no', extra={'order': 7, 'odd': object, 'requestId': 'forged'})"
    )
    (line,) = logged(code)
    assert (line["errorType"], line["errorMessage"], line["order"]) == ("KeyError", "'k'", 7)
    assert line["stackTrace"][0].startswith('  File "<string>"') and line["location"].endswith(":<module>:6")
    assert line["requestId"] != "forged" and line["odd"].startswith("<class")


def test_a_line_whose_extras_json_cannot_have_is_an_object_with_their_text() -> None:
    code = "class Odd:\n  def __str__(self): raise ValueError\n"
    code += "circle = []; circle.append(circle)\n"
    code += "log.info('x', extra={'nan': float('nan'), 'pairs': {(1, 2): 3}, 'circle': circle, 'odd': Odd(), 'n': [1]})"
    (line,) = logged(code)
    assert (line["message"], line["nan"], line["pairs"]) == ("x", "nan", "{(1, 2): 3}")
    assert (line["circle"], line["n"]) == ("[[...]]", [1]) and "ValueError" in line["odd"]


@pytest.mark.parametrize(
    ("level", "count"), [("TRACE", 5), ("DEBUG", 5), ("INFO", 4), ("WARN", 3), ("ERROR", 2), ("FATAL", 1)]
)
def test_only_records_of_its_level_are_there(level: str, count: int) -> None:
    code = "for name in ('debug', 'info', 'warning', 'error', 'critical'): getattr(log, name)(name)"
    assert len(logged(code, level)) == count


def test_what_basic_config_has_made_gives_way_and_the_functions_own_handler_stays() -> None:
    code = "h = logging.StreamHandler()\n"
    code += """h.setFormatter(logging.Formatter('{"own": "%(message)s"}'))\n"""
    code += "logging.getLogger().addHandler(h)\nlog_layout.apply()\nlog.warning('once')"
    first, own = logged(code)
    assert first["message"] == "once" and own == {"own": "once"}


def test_a_message_whose_arguments_do_not_fit_is_logged_with_what_is_wrong() -> None:
    (line,) = logged("log.info('%d rows', 'many')")
    assert line["message"].startswith("%d rows [its arguments do not fit: TypeError: ")


def test_a_logged_exception_has_its_notes_and_the_source_of_a_syntax_error() -> None:
    (line,) = logged(
        "try: compile('(', 'mine.py', 'exec')\nexcept SyntaxError as error:\n  error.add_note('a note'); log.exception('no')"
    )
    assert line["stackTrace"][-4:] == ['  File "mine.py", line 1\n', "    (\n", "    ^\n", "a note\n"]


def test_what_a_logged_exception_came_from_follows_its_stack() -> None:
    (line,) = logged(
        "try:\n  try: {}['k']\n  except KeyError as error: raise ValueError('v') from error\n"
        "except ValueError: log.exception('no')"
    )
    assert line["stackTrace"][-1] == "KeyError: 'k'\n"
