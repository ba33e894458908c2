"""Languages: how the statements of a recorded script are spelled in C and in Rust, with the helpers of the SDKs."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from sockd_initscripts.authoring.field_texts import Field, Literal, Text
from sockd_initscripts.authoring.script_plan import Directory, Fetch, Get, Listing, Lookup
from sockd_initscripts.authoring.script_statements import (
    DYNAMODB,
    S3,
    Count,
    GetListed,
    Pass,
    PassAs,
    PassListed,
    Remark,
    Send,
    SendEach,
    Skip,
    Statement,
    connection_of,
    path_of,
    texts_of,
)

WIDTH = 118
INDENT = "    "
_OURS = "event s3 dynamodb one rest i boot run input text concat join quoted listed next later core alloc std".split()
_C_WORDS = (
    "auto break case char const continue default do double else enum extern float for goto if inline int long register "
    "restrict return short signed sizeof static struct switch typedef typeof union unsigned void volatile while"
).split()
_RUST_WORDS = (
    "abstract as async await become box break const continue crate do dyn else enum extern false final fn for gen if impl "
    "in let loop macro match mod move mut override priv pub ref return self static struct super trait true try type "
    "typeof unsafe unsized use virtual where while yield"
).split()
_SLASH = Literal("/")


class Language(ABC):
    """One script being spelled."""

    comment: str
    keywords: Sequence[str]

    def __init__(self) -> None:
        self._variables: dict[Field, str] = {}

    def write(self, opening: Sequence[str], made: Sequence[Statement]) -> str:
        """The whole source. Args: opening: the comment at its top."""
        self._name_fields(made)
        body = [*self._begin(made), *(line for statement in made for line in self._spell(statement))]
        lines = [*self._head(opening, "\n".join(body)), *(f"{INDENT}{line}".rstrip() for line in body), "}", ""]
        return "\n".join(lines)

    def text(self, parts: Text) -> str:
        """An expression for a text. Fields with a slash between them are taken for os.path.join."""
        words = [self._literal(part.text) if isinstance(part, Literal) else self._field(part) for part in parts]
        if len(words) < 2:
            return words[0] if words else self._literal("")
        names, slashes = parts[::2], parts[1::2]
        if len(names) == len(slashes) or any(isinstance(part, Literal) for part in names) or {*slashes} != {_SLASH}:
            return self._concat(words)
        made = words[0]
        for word in words[2::2]:
            made = self._join(made, word)
        return made

    def _name_fields(self, made: Sequence[Statement]) -> None:
        """As little of each path as makes the names different."""
        taken = {*_OURS, *self.keywords, *_connections(made)}
        for statement in made:
            step = statement.step if isinstance(statement, Send | SendEach | GetListed) else None
            for part in (part for text in (texts_of(step) if step else ()) for part in text):
                if isinstance(part, Field) and not part.of_element and part not in self._variables:
                    self._variables[part] = name = _free_name(part.path, taken)
                    taken.add(name)

    def _uses_event(self, made: Iterable[Statement]) -> bool:
        return bool(self._variables) or any(isinstance(statement, SendEach) for statement in made)

    def _field(self, field: Field) -> str:
        return self._read("one", field) if field.of_element else self._variables[field]

    def _spell(self, statement: Statement) -> list[str]:
        match statement:
            case Remark(text=""):
                return [""]
            case Remark(text=text):
                return [self._remark(text)]
            case Send(step=step, index=index):
                return self._send(step, index, is_counter=statement.is_counter)
        return self._spell_other(statement)

    @abstractmethod
    def _head(self, opening: Sequence[str], body: str) -> list[str]:
        """The lines above the body, to the opening brace."""

    @abstractmethod
    def _begin(self, made: Sequence[Statement]) -> list[str]:
        """The first lines of the body: fields and connections."""

    @abstractmethod
    def _remark(self, text: str) -> str: ...

    @abstractmethod
    def _send(self, step: Get | Listing | Directory | Lookup | Fetch, index: str, *, is_counter: bool) -> list[str]: ...

    @abstractmethod
    def _spell_other(self, statement: Statement) -> list[str]: ...

    @abstractmethod
    def _literal(self, text: str) -> str: ...

    @abstractmethod
    def _read(self, source: str, field: Field) -> str: ...

    @abstractmethod
    def _concat(self, words: Sequence[str]) -> str: ...

    @abstractmethod
    def _join(self, before: str, behind: str) -> str: ...


class C(Language):
    """With sockd_s3.h."""

    keywords = _C_WORDS

    def _head(self, opening: Sequence[str], body: str) -> list[str]:
        later = ["", f"#define LATER (1ll << 32) {self._remark('no number of a read')}"] if "LATER" in body else []
        top = [f"{'/*' if place == 0 else ' *'} {line}".rstrip() for place, line in enumerate(opening)]
        return [*top, " */", "", '#include "sockd_s3.h"', *later, "", "SOCKD_EXPORT void boot(void) {"]

    def _begin(self, made: Sequence[Statement]) -> list[str]:
        lines = ["sockd_str event = sockd_input();"] if self._uses_event(made) else []
        lines += [f"sockd_str {name} = {self._read('event', field)};" for field, name in self._variables.items()]
        if any(isinstance(statement, SendEach) for statement in made):
            lines.append("sockd_str rest, one;")
        for name, address in _connections(made).items():
            lines.append(f"int32_t {name} = sockd_open({self._literal(address)});")
        return [*lines, ""]

    def _remark(self, text: str) -> str:
        # The recorded text in it is JSON in ASCII; it must not end the comment.
        return f"/* {text.replace('*/', '* /').replace('/*', '/ *')} */"

    def _send(self, step: Get | Listing | Directory | Lookup | Fetch, index: str, *, is_counter: bool) -> list[str]:
        index += "++" if is_counter else ""
        match step:
            case Get(bucket=bucket, key=key, range=None):
                function, last = "sockd_s3_head" if step.head else "sockd_s3_get", [self.text(bucket), self.text(key)]
            case Get(bucket=bucket, key=key, range=wanted):
                function, last = "sockd_s3_get_range", [*map(self.text, (bucket, key, wanted or ()))]
            case Lookup(method=method, body=body):
                pieces = [self._literal(p) if isinstance(p, str) else f"sockd_quoted({self.text(p)})" for p in body]
                document = pieces[0] if len(pieces) == 1 else self._concat(pieces)
                return _call("sockd_send", [DYNAMODB, index, self._literal(method), document], ";")
            case Fetch(connection=connection, method=method):
                return _call("sockd_send", [connection, index, self.text(method), self._literal("")], ";")
            case Listing(page=(_, *_) as page):
                function, last = "sockd_s3_list_page", [*map(self.text, (step.bucket, step.prefix, *page))]
            case _:
                function, last = "sockd_s3_list", [self.text(step.bucket), self.text(step.prefix), "SOCKD_NONE"]
        return _call(function, [S3, index, *last], ";")

    def _spell_other(self, statement: Statement) -> list[str]:
        match statement:
            case Count(name=name, base=base):
                return [f"int64_t {name} = {base};"]
            case Skip(counter=counter):
                return [f"{counter}++;"]
            case SendEach(step=step, counter=counter):
                find = f'rest = sockd_json_find(event, "{_c_text(path_of(step.array))}");'
                inner = [f"{INDENT}{line}" for line in self._send(step.get, counter, is_counter=True)]
                return [find, "while (sockd_json_next(&rest, &one))", *inner]
            case GetListed(step=step, index=index, name=name):
                arguments = [S3, index, self.text(step.bucket), self.text(step.prefix)]
                return _call(f"sockd_listed {name} = sockd_s3_get_listed", arguments, ";")
            case Pass(connection=connection, first=first, end=end):
                return [f"sockd_pass_all({connection}, {first}, {end});"]
            case PassListed(name=name):
                return [f"sockd_pass_all(s3, {name}.first, {name}.end);"]
            case PassAs(connection=connection, rpc=rpc, index=index, count="1"):
                return [f"sockd_pass_as({connection}, {rpc}, {index});"]
            case PassAs(connection=connection, rpc=rpc, index=index, count=count):
                passed = f"sockd_pass_as({connection}, {rpc} + i, {index} + i);"
                return [f"for (int64_t i = 0; i < {count}; i++) {passed}"]
        raise AssertionError(statement)

    def _literal(self, text: str) -> str:
        return f'SOCKD_STR("{_c_text(text)}")'

    def _read(self, source: str, field: Field) -> str:
        read = f'sockd_json_string({source}, "{_c_text(path_of(field.path))}")'
        return f"sockd_unquote_plus({read})" if field.unquoted else read

    def _concat(self, words: Sequence[str]) -> str:
        return f"sockd_concat({', '.join(words)})"

    def _join(self, before: str, behind: str) -> str:
        return f"sockd_join({before}, {behind})"


class Rust(Language):
    """With the crate sockd-initscript."""

    keywords = _RUST_WORDS

    def _head(self, opening: Sequence[str], body: str) -> list[str]:
        helpers = ("concat", "input", "join", "quoted", "text", "unquote_plus")
        used = [name for name in helpers if re.search(rf"\b{name}\(", body)]
        used += ["s3"] if "s3::" in body else []
        used += ["Connection"] if "Connection::" in body else []
        later = ["const LATER: i64 = 1 << 32; // no number of a read", ""] if "LATER" in body else []
        top = [f"//! {line}".rstrip() for line in opening]
        uses = f"use sockd_initscript::{{{', '.join(['boot', *sorted(used, key=str.lower)])}}};"
        return [*top, "#![no_std]", "", uses, "", *later, "boot!(run);", "", "fn run() {"]

    def _begin(self, made: Sequence[Statement]) -> list[str]:
        lines = ["let event = input();"] if self._uses_event(made) else []
        lines += [f"let {name} = {self._read('event', field)};" for field, name in self._variables.items()]
        for name, address in _connections(made).items():
            opened = "s3::open()" if name == S3 else f"Connection::open(&{self._literal(address)})"
            lines.append(f"let {name} = {opened};")
        return [*lines, ""]

    def _remark(self, text: str) -> str:
        return f"// {text}"

    def _send(self, step: Get | Listing | Directory | Lookup | Fetch, index: str, *, is_counter: bool) -> list[str]:
        match step:
            case Get(bucket=bucket, key=key, range=None):
                function, texts = "s3::head" if step.head else "s3::get", [bucket, key]
            case Get(bucket=bucket, key=key, range=wanted):
                function, texts = "s3::get_range", [bucket, key, wanted or ()]
            case Lookup(method=method, body=body):
                pieces = [self._literal(p) if isinstance(p, str) else f"quoted(&{self.text(p)})" for p in body]
                document = pieces[0] if len(pieces) == 1 else self._concat(pieces)
                lines = _call(f"{DYNAMODB}.send", [index, f'"{_rust_text(method)}"', f"&{document}"], ";")
                return [*lines, *([f"{index} += 1;"] if is_counter else [])]
            case Fetch(connection=connection, method=wanted):
                lines = _call(f"{connection}.get", [index, f"&{self.text(wanted)}"], ";")
                return [*lines, *([f"{index} += 1;"] if is_counter else [])]
            case Listing(page=(_, *_) as page):
                places = [S3, index, f"&{self.text(step.bucket)}", f"&{self.text(step.prefix)}"]
                lines = _call("s3::list_page", [*places, f"[{', '.join(f'&{self.text(text)}' for text in page)}]"], ";")
                return [*lines, *([f"{index} += 1;"] if is_counter else [])]
            case _:
                function, texts = "s3::list", [step.bucket, step.prefix]
        lines = _call(function, [S3, index, *(f"&{self.text(text)}" for text in texts)], ";")
        return [*lines, *([f"{index} += 1;"] if is_counter else [])]

    def _spell_other(self, statement: Statement) -> list[str]:
        match statement:
            case Count(name=name, base=base):
                return [f"let mut {name} = {base};"]
            case Skip(counter=counter):
                return [f"{counter} += 1;"]
            case SendEach(step=step, counter=counter):
                inner = [f"{INDENT}{line}" for line in self._send(step.get, counter, is_counter=True)]
                array = f'event.find("{_rust_text(path_of(step.array))}")'
                return [f"for one in {array}.elements() {{", *inner, "}"]
            case GetListed(step=step, index=index, name=name):
                arguments = [S3, index, f"&{self.text(step.bucket)}", f"&{self.text(step.prefix)}"]
                return _call(f"let {name} = s3::get_listed", arguments, ";")
            case Pass(connection=connection, first=first, end=end):
                return [f"{connection}.pass_all({first}..{end});"]
            case PassListed(name=name):
                return [f"s3.pass_all({name}.clone());"]
            case PassAs(connection=connection, rpc=rpc, index=index, count="1"):
                return [f"let _ = {connection}.pass_as({rpc}, {index});"]
            case PassAs(connection=connection, rpc=rpc, index=index, count=count):
                passed = f"let _ = {connection}.pass_as({rpc} + i, {index} + i);"
                return [f"for i in 0..{count} {{", f"{INDENT}{passed}", "}"]
        raise AssertionError(statement)

    def _literal(self, text: str) -> str:
        return f'text("{_rust_text(text)}")'

    def _read(self, source: str, field: Field) -> str:
        read = f'{source}.string("{_rust_text(path_of(field.path))}")'
        return f"unquote_plus(&{read})" if field.unquoted else read

    def _concat(self, words: Sequence[str]) -> str:
        return f"concat(&[{', '.join(f'&{word}' for word in words)}])"

    def _join(self, before: str, behind: str) -> str:
        return f"join(&{before}, &{behind})"


def _connections(made: Sequence[Statement]) -> dict[str, str]:
    """The address of each connection, by its name."""
    steps = [statement.step for statement in made if isinstance(statement, Send | SendEach)]
    names = {connection_of(step): step for step in steps}
    first = [name for name in (S3, DYNAMODB) if name in names]
    servers = {name: step.address for name, step in names.items() if isinstance(step, Fetch)}
    return {name: f"{name}:" for name in first} | servers


def _call(function: str, arguments: Sequence[str], end: str) -> list[str]:
    """A call in one line, or with an argument a line where that is too long."""
    line = f"{function}({', '.join(arguments)}){end}"
    if len(line) + 2 * len(INDENT) <= WIDTH:
        return [line]
    inner = [f"{INDENT}{argument}," for argument in arguments]
    return [f"{function}(", *inner[:-1], inner[-1].removesuffix(",") + f"){end}"]


def _free_name(path: Sequence[str | int], taken: set[str]) -> str:
    words = [re.sub(r"[^A-Za-z0-9]+", "_", str(step)).strip("_").lower() for step in path]
    for length in range(1, len(words) + 1):
        name = "_".join(filter(None, words[-length:]))
        if name[:1].isalpha() and name not in taken:
            return name
    number = 1
    while f"field_{number}" in taken:
        number += 1
    return f"field_{number}"


def _c_text(text: str) -> str:
    """Between the quotes of a C string: octal for all that is not printable ASCII, and for `?`, which begins trigraphs."""
    return "".join(
        f"\\{chr(byte)}" if byte in b'"\\' else chr(byte) if 32 <= byte < 127 and byte != 0x3F else f"\\{byte:03o}"
        for byte in text.encode()
    )


def _rust_text(text: str) -> str:
    """Between the quotes of a Rust string."""
    return "".join(f"\\{c}" if c in '"\\' else c if 32 <= ord(c) < 127 else f"\\u{{{ord(c):x}}}" for c in text)
