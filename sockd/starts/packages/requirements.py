"""The supported subset of requirements.txt: names, extras, versions, markers and sha256 hashes.

Other lines of pip's syntax are refused with the reason: options would select another index; paths would let the daemon, which is
root, read files of its host. URLs, git repositories included, require a deploy that allows builds: only a sandbox fetches them.
Pure; runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from sockd.base.errors import BuildNeeded, ResolveFailed

MAX_CHARACTERS = 1 << 20
"""A hundred packages with the hashes of fifty wheels each is 0.4 MB."""

# A comment needs a space before it (pip's rule), because a URL fragment starts with # too.
MAX_LINES = 5000
"""That say something."""
MAX_LINE_CHARACTERS = 32 * 1024
"""The most characters of one line with its continuations: a requirement and the hashes of some hundred wheels."""
MAX_REQUIREMENT_CHARACTERS = 2000
"""The most characters of one requirement without its hashes: `packaging` descends into markers, one call of Python's for
each parenthesis."""

_COMMENT = re.compile(r"(^|\s)#.*$")
_HASH = re.compile(r"\s--hash(?:=|\s+)(\S+)")
_SHA256 = re.compile(r"sha256:([0-9a-f]{64})")
LINE = "requirements.txt line"
_NO_PATHS = "paths are refused; packages come from the worker's package index, by name and version"
_URL_FORM = "a URL is written NAME @ https://... or NAME @ git+https://..., without credentials"
_SCHEMES = ("https://", "http://", "git+https://", "git+http://")


class _Url(ValueError):
    """A requirement that gives a URL, where none may be."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """What was asked for, in words that mean to uv what they mean here."""

    lines: tuple[str, ...] = ()
    digests: tuple[tuple[str, frozenset[str]], ...] = ()
    """For each package with hashes: its normalised name and the sha256 digests that are allowed."""

    @property
    def text(self) -> str:
        """A requirements file for the resolver, without the hashes: uv does not apply those when it resolves."""
        return "".join(line + "\n" for line in self.lines)

    def with_digests(self, other: Requirements) -> Requirements:
        """The same requirements, whose packages must also have the digests that others name."""
        return Requirements(self.lines, self.digests + other.digests)

    @property
    def has_urls(self) -> bool:
        return any("://" in line for line in self.lines)

    def allows(self, name: str, digest: str) -> bool:
        """Whether a wheel with this digest may stand for the package; any may where no hash was given."""
        return all(digest in digests for pinned, digests in self.digests if pinned == name)


def parse(text: str, line_words: str = LINE, *, may_have_urls: bool = False) -> Requirements:
    """The requirements in the text of a requirements.txt.

    Args: line_words: what stands before a line's number in an error, where the lines come from another file;
        may_have_urls: whether `name @ URL` is one.
    Raises: ResolveFailed, naming the line, for all that is not `name[extras]<versions>; marker --hash=sha256:...`; BuildNeeded
        for a URL that may not be."""
    if len(text) > MAX_CHARACTERS:
        raise ResolveFailed(f"the requirements have {len(text)} characters, limit {MAX_CHARACTERS}")
    lines: list[str] = []
    digests: list[tuple[str, frozenset[str]]] = []
    for number, line in _logical_lines(text):
        if len(lines) >= MAX_LINES or len(line) > MAX_LINE_CHARACTERS:
            raise ResolveFailed(
                f"{line_words} {number}: at most {MAX_LINES} lines of {MAX_LINE_CHARACTERS} characters are read"
            )
        try:
            requirement, allowed = _parse_line(line, may_have_urls=may_have_urls)
        except _Url as error:
            raise BuildNeeded(f"{line_words} {number}: {line[:120]!r}: {error}") from None
        except ValueError as error:
            raise ResolveFailed(f"{line_words} {number}: {line[:120]!r}: {error}") from None
        lines.append(str(requirement))
        if allowed:
            digests.append((requirement.name, allowed))
    return Requirements(tuple(lines), tuple(digests))


def without(text: str, brought: Mapping[str, Version], environment: Mapping[str, str] | None = None) -> str:
    """The text of a requirements.txt, without what is there already and what is not for this machine.

    Args: environment: of markers, where it is not that of the worker's own interpreter;
        brought: versions that are there, by normalised name. The text is unchanged if they satisfy none of its lines."""
    kept, is_any_there = [], False
    marker_environment = dict(environment or {})
    for _, line in _logical_lines(text):
        try:
            requirement, _ = _parse_line(line)
            version = brought.get(requirement.name)
            is_there = version is not None and requirement.specifier.contains(version, prereleases=True)
            is_elsewhere = requirement.marker is not None and not requirement.marker.evaluate(marker_environment)
        except ValueError:  # who resolves it says what is wrong with it
            is_there = is_elsewhere = False
        is_any_there |= is_there
        if not is_there and not is_elsewhere:
            kept.append(line)
    return "".join(f"{line}\n" for line in kept) if is_any_there else text


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number, line) for each line that says something: comments gone, continuations joined."""
    pending, start = "", 0
    for number, physical in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        start = start if pending else number
        if physical.endswith("\\") and not _COMMENT.match(physical):
            pending += physical[:-1] + " "
            continue
        line = _COMMENT.sub("", pending + physical).strip()
        pending = ""
        if line:
            yield start, line
    if rest := _COMMENT.sub("", pending).strip():
        yield start, rest


def _parse_line(line: str, *, may_have_urls: bool = False) -> tuple[Requirement, frozenset[str]]:
    """The requirement of one logical line and the digests that it allows (none: any).

    Raises: ValueError that says why the line is refused."""
    if line.startswith("-"):
        raise ValueError(_why_no_option(line.replace("=", " ").split()[0]))
    hashes = _HASH.findall(line)
    line = _HASH.sub("", line).strip()
    if len(line) > MAX_REQUIREMENT_CHARACTERS:
        raise ValueError(f"a requirement has at most {MAX_REQUIREMENT_CHARACTERS} characters")
    if re.search(r"\s-", line):
        raise ValueError("of the options of a requirement, only --hash is taken")
    has_url = "://" in line.split(";")[0]
    if line.startswith((".", "/", "~")) or (line.endswith(".whl") and not has_url):
        raise ValueError(_NO_PATHS)
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        if has_url:
            raise ValueError(_URL_FORM) from None
        raise ValueError(str(error).splitlines()[0]) from None
    except RecursionError:
        raise ValueError("its marker is nested too deeply") from None
    # uv takes a name that ends like an archive ("x.zip") for a path; a normalised name has no dot.
    requirement.name = canonicalize_name(requirement.name)
    if requirement.url:
        _check_url(requirement.url, may_have_urls=may_have_urls)
    digests = [_SHA256.fullmatch(value) for value in hashes]
    if None in digests:
        raise ValueError("a hash must be sha256: and 64 hex digits")
    return requirement, frozenset(match[1] for match in digests if match)


def _check_url(url: str, *, may_have_urls: bool) -> None:
    """Raises: ValueError."""
    if not url.startswith(_SCHEMES):
        raise ValueError(_NO_PATHS if "://" not in url or url.startswith("file:") else _URL_FORM)
    authority = url.partition("://")[2].partition("/")[0]
    if "@" in authority or not url.isprintable():
        raise ValueError(_URL_FORM)
    if not may_have_urls:
        raise _Url("a URL is built from source")


def _why_no_option(option: str) -> str:
    if option in ("-r", "--requirement", "-c", "--constraint"):
        return "other files are not read here; put their lines in their place"
    if option in ("-e", "--editable"):
        return "editable packages are refused; put their code next to the handler"
    if option in ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-index", "--trusted-host"):
        return "an index is chosen in sockd.toml ([packages] index), among those of the worker's configuration"
    return "options are refused, except --hash after a requirement"
