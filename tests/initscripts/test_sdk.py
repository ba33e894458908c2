"""The SDKs: they declare the engine's ABI as it is, and their helpers agree with Python on any text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd_initscripts.authoring import toolchain
from sockd_initscripts.engine import abi
from tests.initscripts.builds import build_text
from tests.initscripts.fake_engine import FakeEngine

HEADER = (toolchain.SDK / "c/sockd_init.h").read_text()
CRATE = toolchain.SDK / "rust"
RUST = (CRATE / "src/sys.rs").read_text()
ZIG = (toolchain.SDK / "zig/sockd.zig").read_text()

# The input is a path, a zero byte and a text. The text is put at the end of the memory: a read beyond it traps.
PROBE_C = """
#include "sockd_s3.h"

static void answer(int64_t id, sockd_str text) {
    if (text.ptr) sockd_send_bytes(id, text.ptr, text.len);
}

SOCKD_EXPORT void boot(void) {
    sockd_str input = sockd_input(), text, rest, one;
    uint32_t path = 0;
    while (input.ptr[path]) path++;
    __builtin_wasm_memory_grow(0, 8);
    text.len = input.len - path - 1;
    char *end = (char *)(__builtin_wasm_memory_size(0) << 16), *copy = end - text.len;
    for (uint32_t i = 0; i < text.len; i++) copy[i] = input.ptr[path + 1 + i];
    text.ptr = copy;

    answer(0, sockd_json_find(text, input.ptr));
    answer(1, sockd_json_string(text, input.ptr));
    sockd_builder b = {0};
    int64_t number = sockd_json_int(text, input.ptr, -1);
    if (number >= 0) sockd_put_int(&b, (uint64_t)number);
    answer(2, sockd_built(&b));
    answer(3, sockd_unquote_plus(text));
    sockd_builder quoted = {0};
    sockd_put_json(&quoted, text);
    answer(4, sockd_built(&quoted));
    rest = text;
    for (int64_t i = 0; sockd_xml_next(&rest, SOCKD_STR("Key"), &one); i++) answer(100 + i, one);
    rest = sockd_json_find(text, input.ptr);
    for (int64_t i = 0; sockd_json_next(&rest, &one); i++) answer(1000 + i, one);
}
"""
PROBE_RUST = """
#![no_std]
extern crate alloc;
use alloc::string::String;
use alloc::vec::Vec;
use sockd_initscript::{boot, input, put_json, s3, sys, unquote_plus, Json, Text};

boot!(run);

fn answer(id: i64, text: &Text) {
    if let Some(bytes) = &text.0 {
        unsafe { sys::send_bytes(id, bytes.as_ptr(), bytes.len() as u32) };
    }
}

fn run() {
    let input = input().0;
    let end = input.iter().position(|&byte| byte == 0).unwrap();
    let path = String::from_utf8(input[..end].to_vec()).unwrap();
    let text = &input[end + 1..];
    let json = Json(Some(text));
    let found = json.find(&path);
    answer(0, &Text(found.0.map(|value| value.to_vec())));
    answer(1, &json.string(&path));
    let mut number = json.int(&path, -1);
    let mut digits = Vec::new();
    if number >= 0 {
        while digits.is_empty() || number > 0 {
            digits.insert(0, b'0' + (number % 10) as u8);
            number /= 10;
        }
    }
    answer(2, &Text(Some(digits)));
    answer(3, &unquote_plus(&Text(Some(text.to_vec()))));
    let mut quoted = Vec::new();
    put_json(&mut quoted, text);
    answer(4, &Text(Some(quoted)));
    let mut rest = text;
    let mut id = 100;
    while let Some(one) = s3::xml_next(&mut rest, "Key") {
        answer(id, &one);
        id += 1;
    }
    for (id, one) in (1000..).zip(found.elements()) {
        answer(id, &Text(one.0.map(|value| value.to_vec())));
    }
}
"""
PROBE_ZIG = """
const sockd = @import("sockd");

pub const panic = @import("std").debug.no_panic;

export fn boot() void {
    run() catch return;
}

fn run() !void {
    var rest: []const u8 = (try sockd.input())[1..];
    var id: i64 = 100;
    while (try sockd.xmlNext(&rest, "Key")) |key| : (id += 1) _ = sockd.send_bytes(id, key.ptr, @intCast(key.len));
}
"""
PROBES = {"c": PROBE_C, "rust": PROBE_RUST, "zig": PROBE_ZIG}
LISTS = {
    "c": """
#include "sockd_s3.h"
SOCKD_EXPORT void boot(void) {
    int32_t s3 = sockd_open(SOCKD_STR("s3:"));
    sockd_s3_list(s3, 0, SOCKD_STR("b"), SOCKD_STR("d/"), SOCKD_NONE);
    sockd_listed gets = sockd_s3_get_listed(s3, 0, SOCKD_STR("b"), SOCKD_STR("d/"));
    sockd_pass_all(s3, gets.first, gets.end);
}
""",
    "zig": """
const sockd = @import("sockd");
pub const panic = @import("std").debug.no_panic;
export fn boot() void {
    run() catch return;
}
fn run() !void {
    const s3 = sockd.open("s3:");
    _ = try sockd.list(s3, 0, "b", "d/", .{});
    const gets = try sockd.getListed(s3, 0, "b", "d/");
    var index = gets.first;
    while (index < gets.end) : (index += 1) _ = sockd.pass(s3, index);
}
""",
}
FOUND, STRING, NUMBER, UNQUOTED, QUOTED, KEYS, ELEMENTS = 0, 1, 2, 3, 4, 100, 1000

characters = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | characters,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(characters, inner, max_size=4),
    max_leaves=12,
)


class Probe:
    """The probe, built of one of the SDKs."""

    def __init__(self, language: str) -> None:
        self._wasm = build_text(PROBES[language], language)

    def __call__(self, text: bytes, path: str = "") -> dict[int, bytes]:
        """What its helpers make of a text."""
        run = FakeEngine({}, path.encode() + b"\0" + text).run(self._wasm)
        return {number: message[2] for number, message in run.messages.items()}


@pytest.fixture(scope="module", params=["c", "rust"])
def probe(request: pytest.FixtureRequest) -> Probe:
    return Probe(request.param)


@pytest.fixture(scope="module", params=["c", "rust", "zig"])
def list_probe(request: pytest.FixtureRequest) -> Probe:
    """One of an SDK that reads lists; that in Zig has JSON of the standard library."""
    return Probe(request.param)


def paths(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Every value in a value, by its path."""
    found = [(prefix, value)] if prefix else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        part = str(name).replace("\\", "\\\\").replace(".", "\\.")
        # A path cannot end with an empty name, nor hold the byte that ends it.
        if part and "\0" not in part:
            found += paths(inner, f"{prefix}.{part}" if prefix else part)
    return found


def test_the_header_declares_the_abi_as_it_is() -> None:
    kinds = {"int32_t": "i", "uint32_t": "i", "int64_t": "I"}
    declared = {}
    text = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)
    for name, result, parameters in re.findall(
        r'SOCKD_IMPORT\("(\w+)"\)\s*([\w ]+?) sockd_\w+\((.*?)\);', text, re.DOTALL
    ):
        types = [] if parameters == "void" else [re.sub(r"\s*\w+$", "", part.strip()) for part in parameters.split(",")]
        declared[name] = ("".join(kinds.get(kind, "i") for kind in types), "" if "void" in result else kinds[result])
    assert declared == dict(abi.FUNCTIONS)


def test_the_zig_file_declares_the_abi_as_it_is() -> None:
    kinds = {"i32": "i", "u32": "i", "i64": "I", "void": "", "noreturn": ""}
    declared = {}
    for name, parameters, result in re.findall(r'^pub extern "sockd_v1" fn (\w+)\((.*?)\) (\w+);', ZIG, re.MULTILINE):
        types = [part.split(": ")[1] for part in parameters.split(", ") if part]
        declared[name] = ("".join(kinds.get(kind, "i") for kind in types), kinds[result])
    assert declared == dict(abi.FUNCTIONS)


def test_the_crate_declares_the_abi_as_it_is() -> None:
    kinds = {"i32": "i", "u32": "i", "i64": "I", "!": ""}
    declared = {}
    for name, parameters, result in re.findall(
        r"^    fn (\w+)\((.*?)\)\s*(?:-> (\S+))?", RUST, re.MULTILINE | re.DOTALL
    ):
        types = [part.split(": ")[1] for part in parameters.split(", ") if part]
        result = result.rstrip(";")
        declared[name] = ("".join(kinds.get(kind, "i") for kind in types), kinds[result] if result else "")
    assert declared == dict(abi.FUNCTIONS)


@given(value=st.dictionaries(characters, values, max_size=5) | st.lists(values, max_size=5), data=st.data())
def test_fields_are_what_python_finds(probe: Probe, value: object, data: st.DataObject) -> None:
    ascii_only, indent = data.draw(st.booleans()), data.draw(st.sampled_from([None, 1]))
    found = paths(value)
    if not found:
        return
    path, inner = data.draw(st.sampled_from(found))
    answers = probe(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode(), path)
    assert json.loads(answers[FOUND]) == inner
    if isinstance(inner, str):
        assert answers[STRING].decode() == inner
    elif isinstance(inner, (int, float)) and not isinstance(inner, bool):
        assert answers[STRING] == answers[FOUND]
    else:
        assert STRING not in answers
    if type(inner) is int and 0 <= inner < 10**18:
        assert int(answers[NUMBER]) == inner
    if isinstance(inner, list):
        assert [json.loads(answers[ELEMENTS + number]) for number in range(len(inner))] == inner
        assert ELEMENTS + len(inner) not in answers


@given(text=st.binary(max_size=60) | st.text('{}[]",:\\u0d8aé1 ', max_size=40).map(str.encode))
def test_no_text_is_read_past_its_end(probe: Probe, text: bytes) -> None:
    for path in ("", "a", "0", "a.0.b"):
        probe(text, path)


def test_what_a_field_lacks_is_lacking(probe: Probe) -> None:
    text = json.dumps({"a": {"b": [1, "x"]}, "": 0}).encode()
    for path in ("c", "a.c", "a.b.2", "a.b.x", "a.b.1.x", "a.b.99999999999"):
        assert FOUND not in probe(text, path), path
    assert probe(b'{"a": 1, "a": 2}', "a")[FOUND] == b"2"


@given(text=st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("%+4aF"), max_size=30))
def test_unquoting_and_quoting_are_pythons(probe: Probe, text: str) -> None:
    answers = probe(text.encode())
    assert answers[UNQUOTED].decode(errors="replace") == urllib.parse.unquote_plus(text)
    assert json.loads(answers[QUOTED]) == text


@given(
    keys=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12), max_size=4)
)
def test_keys_of_a_list_are_decoded(list_probe: Probe, keys: list[str]) -> None:
    names = {"&": "&amp;", "<": "&lt;", '"': "&quot;", "\r": "&#13;", "\x01": "&#x1;", "😀": "&#x1F600;", "'": "&apos;"}
    escaped = ["".join(names.get(character, character) for character in key) for key in keys]
    page = "<A><Keys>no</Keys>" + "".join(f"<Key>{key}</Key>" for key in escaped) + "<Key>cut"
    answers = list_probe(page.encode())
    assert [answers[number].decode() for number in sorted(answers) if KEYS <= number < ELEMENTS] == keys


@pytest.mark.parametrize("language", sorted(LISTS))
def test_a_directory_is_fetched_page_by_page(language: str) -> None:
    keys = [f"d/{number}" for number in range(5)]
    engine = FakeEngine({("b", key): b"1" for key in keys}, b"{}", page_keys=2)
    pages = [["s3.ListObjectsV2", "b", "d/", *token] for token in ([], ["2"], ["4"])]
    assert engine.run(build_text(LISTS[language], language)).reads() == [
        *pages,
        *(["s3.GetObject", "b", key] for key in keys),
    ]


@pytest.mark.parametrize(
    ("language", "readme"), [("c", "c/README.md"), ("zig", "zig/README.md"), ("rust", "rust/README.md")]
)
def test_the_script_in_the_readme_works(language: str, readme: str) -> None:
    lines = (toolchain.SDK / readme).read_text().splitlines()
    script = "\n".join(line[4:] for line in lines if line.startswith("    ") or not line)
    event = json.dumps({"bucket": {"bucket": "b"}, "object": {"key": "k"}}).encode()
    run = FakeEngine({}, event).run(build_text(script, language))
    assert run.reads() == [["s3.GetObject", "b", "k"], ["s3.GetObject", "b", "models/weights.bin"]]


@pytest.mark.parametrize("name", sorted(path.name for path in toolchain.EXAMPLES.iterdir()))
def test_the_headers_make_no_compiler_complain(name: str, tmp_path: Path) -> None:
    compiler = toolchain.find("c").command
    source = toolchain.EXAMPLES / name / f"{name}.c"
    strict = ["-Werror", "-Wshadow", "-Wstrict-prototypes", "-Wsign-compare", "-Wimplicit-fallthrough"]
    command = [*compiler, *strict, "-I", str(toolchain.SDK / "c"), "-o", str(tmp_path / "made.wasm"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_crates_own_tests_pass(tmp_path: Path) -> None:
    if not shutil.which("cargo"):
        pytest.skip("cargo is not installed")
    # A copy: cargo writes a lock file beside the manifest.
    crate = shutil.copytree(CRATE, tmp_path / "crate")
    command = ["cargo", "test", "--offline", "--quiet", "--manifest-path", str(crate / "Cargo.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
