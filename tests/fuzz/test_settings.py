"""Settings as strangers write them: sockd.toml, ol.yaml, requirements.txt, JSON. Each is taken or refused with a typed error,
none holds up the event loop, and no text of one reaches a head, a path or an argument with a control character in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sockd.base import toml
from sockd.base.blocking import in_thread
from sockd.base.config import Config, FunctionDefaults
from sockd.base.errors import BadConfig, SockdError
from sockd.events.schedules.schedule_expressions import parse as parse_expression
from sockd.functions.code import dependencies, ol_yaml
from sockd.functions.code.code_store import SETTINGS_BYTES
from sockd.functions.code.entrypoint import parse_handler
from sockd.functions.code.function_config import AwsAttributes, FunctionConfig
from sockd.functions.registry.function_url import Cors
from sockd.http.aws import shapes
from sockd.http.management import events as management_events
from sockd.http.management import schedules as management_schedules
from sockd.http.management import urls as management_urls
from sockd.http.management import versions as management_versions
from sockd.http.management.env import Change
from sockd.http.uploads import parse_json
from sockd.starts.packages import requirements
from tests.fuzz.fuzzing import encoded, fuzz, texts, values

DEFAULTS = FunctionDefaults()
LOOP_S = 0.005
"""The loop's own processor time for one setting, in seconds."""
TRIES = 3
"""A text that holds up the loop does so each time; a busy machine does not."""
HOSTILE = ("\r\nX-Evil: 1", "\n", "\r", "\0", "\x1b[2J", "\x7f", "é", "\u2028", "\N{SNOWMAN}", "a" * 20_000)


def read_toml(text: str) -> FunctionConfig:
    return FunctionConfig.from_toml(text, DEFAULTS)


def read_yaml(text: str) -> FunctionConfig:
    return FunctionConfig.from_toml("", DEFAULTS, beneath=ol_yaml.read(text).settings)


def read_pyproject(text: str) -> object:
    with tempfile.TemporaryDirectory() as code:
        Path(code, "pyproject.toml").write_text(text)
        return dependencies.read(Path(code), "f:f")


READERS: dict[str, tuple[Callable[[str], object], int]] = {
    "sockd.toml": (read_toml, SETTINGS_BYTES),
    "ol.yaml": (read_yaml, SETTINGS_BYTES),
    "requirements.txt": (requirements.parse, dependencies.MAX_BYTES),
    "pyproject.toml": (read_pyproject, SETTINGS_BYTES),
}


async def _cost_of_the_loop(read: Callable[[str], object], text: str) -> float:
    """Processor seconds of the loop's thread while a thread reads a text, as the daemon does. Raises: what is no SockdError."""
    gc.disable()  # what other tests have left is collected in any thread
    try:
        before = time.thread_time()
        with contextlib.suppress(SockdError):
            await in_thread(read, text)
        return time.thread_time() - before
    finally:
        gc.enable()


def check(kind: str, text: str) -> None:
    """The property."""
    read, most = READERS[kind]
    text = text.encode("utf-8", "replace").decode()[:most]
    assert any(asyncio.run(_cost_of_the_loop(read, text)) < LOOP_S for _ in range(TRIES))


def parts(*some: str) -> st.SearchStrategy[str]:
    """Texts of these, each perhaps very often, and others between."""
    piece = st.sampled_from(some) | texts(6)
    often = st.builds(lambda text, times: text * times, piece, st.sampled_from([1, 1, 2, 40, 5000]))
    return st.lists(often, max_size=12).map("".join)


TOML = parts(
    "a.", "a = ", "= 1\n", "[", "]", "{", "}", "[[a]]\n", '"', '"""', "'''", "\\u0041", "9", "0x", "f", "\n", ",", "#"
)
YAML = parts(
    "a: ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "? ",
    "| ",
    "!!python/object:",
    "limits:\n",
    "  mem_mb: ",
    "9",
    "\n",
    '"',
    "1e",
)
REQUIREMENTS = parts(
    "numpy",
    "(",
    ")",
    "[a]",
    ">=1",
    ",",
    ";",
    "python_version",
    "==",
    '"3"',
    " or ",
    "#",
    "\\\n",
    "--hash=sha256:",
    "\n",
    "9",
    ".",
)


@fuzz(150)
@example("a." * 7900 + "a = 1")
@example("memory_mb = " + "9" * 5000)
@example("memory_mb = 0x" + "f" * 15000)
@example("memory_mb = " + "9" * 99)
@example("timeout_s = 1" + "0" * 98)
@example("x = " + "[" * 8000)
@example("x = " + "{a=" * 5000)
@example("d = 9999-99-99")
@example('"' * 16000)
@example("'" * 16001)
@example('methods = ["a\\r\\nX-Evil: 1"]')
@given(TOML)
def test_a_sockd_toml_is_taken_or_refused(text: str) -> None:
    check("sockd.toml", text)


@fuzz(60)
@example("dependencies = " + "[" * 8000)
@example("requires-python = '" + ">=1," * 3000 + "'")
@example("dependencies = ['" + "(" * 9000 + "']")
@given(TOML)
def test_a_pyproject_toml_is_taken_or_refused(text: str) -> None:
    check("pyproject.toml", f"[project]\n{text}")


@fuzz(80)
@example("limits:\n  cpu_percent: " + "9" * 4000)
@example("limits:\n  mem_mb: " + "9" * 5000)
@example("[" * 16000)
@example("{" * 16000)
@example("? " * 8000)
@example("- " * 8000)
@example('triggers:\n  http:\n    - method: "a\\r\\nX-Evil: 1"')
@given(YAML)
def test_an_ol_yaml_is_taken_or_refused(text: str) -> None:
    check("ol.yaml", text)


@fuzz(150)
@example("a; " + "(" * 3000 + "os_name=='x'" + ")" * 3000)
@example("a; " + "(" * 900 + "os_name=='x'" + ")" * 900)
@example("a" + "[" * 3000)
@example("a==" + "9" * 1900)
@example("a==" + "9" * 5000)
@example("a==1" + ",==1" * 60_000)
@example("a\\\n" * 60_000)
@example("a\n" * 60_000)
@given(REQUIREMENTS)
def test_requirements_are_taken_or_refused(text: str) -> None:
    check("requirements.txt", text)


MANAGEMENT = (
    *(Change, management_urls.UrlSettings, management_schedules.ScheduleBody, management_schedules.Switch),
    *(
        management_events.EventConfigBody,
        management_versions.Publish,
        management_versions.Lead,
        management_versions.Keep,
    ),
    dict[str, Any],
)
AWS = (
    shapes.Create,
    shapes.Update,
    shapes.UpdateCode,
    shapes.Tags,
    shapes.AliasShape,
    shapes.Publish,
    shapes.Concurrency,
)


@fuzz(200)
@example(b"[" * 60_000)
@example(b'{"a":' * 60_000)
@example(b'{"max_age_s": ' + b"9" * 60_000 + b"}")
@example(b'{"max_age_s": 1e' + b"9" * 60_000 + b"}")
@example(b'{"name": "\\ud800", "set": {"A": "\\ud800"}, "Tags": {"a": "\\ud800"}}')
@given(
    st.binary(max_size=60)
    | values().map(encoded)
    | parts('{"', '":', "[", "9", "1e", "}").map(lambda text: text.encode("utf-8", "replace"))
)
def test_a_body_is_taken_or_refused(body: bytes) -> None:
    for shape in MANAGEMENT:
        with contextlib.suppress(SockdError):
            parse_json(body, shape, "no: {error}")
    for kind in AWS:
        with contextlib.suppress(SockdError):
            shapes.parse(body, kind)


def _strings() -> list[tuple[str, str]]:
    """Every key of sockd.toml that takes text, and how it is written with a text in it."""
    written = [(key, f"{key} = %s") for key in FunctionConfig.__struct_fields__]
    written += [(f"initscript.{key}", f"[initscript]\n{key} = %s") for key in ("wasm", "args")]
    written += [("methods", "methods = [%s]"), ("initscript.endpoints", "[initscript]\nendpoints = [%s]")]
    return [*written, ("env value", "[env]\nA = %s"), ("env name", "[env]\n%s = 'x'"), ("key", "%s = 1")]


def _entry_of(config: FunctionConfig) -> None:
    """As a deploy does. Raises: BadFunctionConfig."""
    if config.handler is not None:
        parse_handler(config.handler)


FREE_TEXT = ("env value", "initscript.args")
"""Text for the function itself, which it gets as it is; a zero byte is in no environment."""


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
def test_no_setting_of_a_function_takes_what_could_end_a_line(hostile: str) -> None:
    for key, form in _strings():
        text = form % toml_text(f"GET{hostile}")
        try:
            config = read_toml(text)
            _entry_of(config)
        except SockdError:
            continue
        if key in ("initscript.wasm", "image"):  # the name of a file
            assert hostile.isprintable()
            continue
        assert key in FREE_TEXT, (key, hostile)
        assert key != "env value" or "\0" not in hostile
        assert config.methods is None


@pytest.mark.parametrize("hostile", [each for each in HOSTILE if each != "é"], ids=ascii)
def test_no_setting_of_an_ol_yaml_takes_what_could_end_a_line(hostile: str) -> None:
    """é may be a letter of a name in Python."""
    quoted = toml_text(f"GET{hostile}")
    for text in (
        f"triggers:\n  http:\n    - method: {quoted}\n",
        f"environment:\n  OL_ENTRY_FILE: {quoted}\n",
        f"environment:\n  OL_WSGI_ENTRY: {quoted}\n",
        f"environment:\n  {quoted}: x\n",
        f"limits:\n  {quoted}: 1\n",
        f"{quoted}: 1\n",
    ):
        with pytest.raises(SockdError):
            _entry_of(read_yaml(text))


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
def test_no_setting_of_a_url_or_of_the_api_takes_what_could_end_a_line(hostile: str) -> None:
    text = f"GET{hostile}"
    for key in ("allow_methods", "allow_origins", "allow_headers", "expose_headers"):
        with pytest.raises(SockdError):
            Cors(**{key: [text]}).check()  # type: ignore[arg-type]
    with pytest.raises(SockdError):
        parse_expression(text, "UTC")
    with pytest.raises(SockdError):
        parse_expression("0 9 * * *", text)
    # Descriptions, roles and tags are shown as JSON alone, and survive the registry.
    attributes = AwsAttributes(description=text, role=text, tags={text: text})
    config = msgspec.structs.replace(FunctionConfig.from_toml("", DEFAULTS), aws=attributes)
    assert FunctionConfig.from_json(config.to_json()).aws == attributes


def _config_texts(kind: type = Config, prefix: str = "") -> list[tuple[str, str]]:
    """Every setting of the worker: its table, and its key."""
    found: list[tuple[str, str]] = []
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found += _config_texts(field.type, field.name)
        else:
            found.append((prefix, field.name))
    return found


@pytest.mark.parametrize("hostile", HOSTILE[:6], ids=ascii)
def test_no_setting_of_the_worker_takes_a_control_character(hostile: str, tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    settings = _config_texts()
    assert len(settings) > 80
    for table, key in settings:
        for form in ("%s", "[%s]", "{ a = %s }", "{ %s = 'a' }"):
            head = f"[{table}]\n" if table else ""
            file.write_text(f"{head}{key} = {form % toml_text('x' + hostile)}\n")
            with pytest.raises(BadConfig):
                Config.load(file)


def toml_text(text: str) -> str:
    """A basic string of TOML, which is one of YAML, too."""
    return (
        '"'
        + "".join(f"\\u{ord(each):04x}" if not each.isascii() or not each.isprintable() else each for each in text)
        + '"'
    )


def test_a_key_may_have_sixteen_parts_and_dots_in_texts_are_none() -> None:
    assert toml.loads(".".join("a" * toml.MOST_PARTS) + " = 1")
    for text in ("a.a." * 8 + "a = 1", "[" + "a." * 20 + "a]", "x = {" + "a." * 16 + "a = 1}", '"a".' * 16 + "a = 1"):
        with pytest.raises(toml.BadToml, match="more than 16 parts"):
            toml.loads(text)
    long = "a." * 100
    assert toml.loads(f"""a = "{long}"\nb = '{long}' # {long}\nc = '''\n{long}'''\nd = [1.5, 2.5, 3.5]\n""")
