"""Lock files: the exact versions and hashes of uv.lock and pylock.toml (PEP 751), as lines of a requirements.txt.

Pure: runs neither uv nor a build backend, and reads no file that a lock file names. Only what a project needs to run is taken:
neither optional dependencies nor dependency groups, unless a lock file installs a group by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from sockd.base.errors import BadArchive
from sockd.isolation.roots.interpreter import Interpreter
from sockd.starts.packages.wheel_tags import NEVER, preference

UV_LOCK, PYLOCK = "uv.lock", "pylock.toml"
EXPORT = {
    UV_LOCK: "uv export --no-dev --no-emit-project -o requirements.txt",
    PYLOCK: "uv pip compile pyproject.toml --generate-hashes -o requirements.txt",
}
"""The command that writes the same as a requirements.txt."""
_LOCK_WORDS = "uv lock"
Table = Mapping[str, Any]


def from_pylock(lock: Table, python: Interpreter) -> list[str]:
    """Return the lines of a pylock.toml. Raises: BadArchive."""
    if str(lock.get("lock-version", "")).partition(".")[0] != "1":
        raise BadArchive(f"{PYLOCK}: lock-version is {lock.get('lock-version')!r}; version 1.0 is read")
    lines = []
    groups = frozenset(each for each in lock.get("default-groups", ()) if isinstance(each, str))
    for package in _tables(PYLOCK, lock.get("packages")):
        name = _name(PYLOCK, package)
        if not _applies(PYLOCK, package.get("marker"), python, extras=frozenset(), dependency_groups=groups):
            continue
        directory = package.get("directory")
        if isinstance(directory, Mapping):
            if directory.get("path") not in (".", "./"):
                raise _not_a_package(PYLOCK, name, str(directory.get("path")))
            continue  # the project itself
        lines.append(_pylock_line(name, package, python))
    return lines


def _pylock_line(name: str, package: Table, python: Interpreter) -> str:
    vcs, archive = package.get("vcs"), package.get("archive")
    if isinstance(vcs, Mapping):
        return _url_line(name, f"{vcs.get('type')}+{vcs.get('url')}@{vcs.get('commit-id')}", vcs.get("subdirectory"))
    if isinstance(archive, Mapping):
        return _url_line(name, str(archive.get("url")), archive.get("subdirectory"), [_sha256(archive)])
    wheels = [
        (str(each.get("name") or each.get("url") or each.get("path") or "").rpartition("/")[2], _sha256(each))
        for each in _tables(PYLOCK, package.get("wheels", ()))
    ]
    sdist = package.get("sdist")
    return _version_line(PYLOCK, name, package, wheels, _sha256(sdist) if isinstance(sdist, Mapping) else "", python)


def from_uv_lock(lock: Table, project: Table | None, python: Interpreter) -> list[str]:
    """Return the lines of a uv.lock.

    Args: project: `[project]` of the pyproject.toml next to it; None: there is none.
    Raises: BadArchive, also if the lock file is older than the project's dependencies."""
    packages: dict[str, list[Table]] = {}
    for package in _tables(UV_LOCK, lock.get("package")):
        packages.setdefault(_name(UV_LOCK, package), []).append(package)
    own = [
        each for group in packages.values() for each in group if _source(each) in (("virtual", "."), ("editable", "."))
    ]
    if len(own) != 1:
        raise BadArchive(f"{UV_LOCK} has no project at its own directory; run: {EXPORT[UV_LOCK]}")
    if project is not None:
        _check_current(own[0], project)
    lines: dict[int, str] = {}
    seen: set[tuple[int, str]] = set()
    waiting = list(_dependencies(own[0], ()))
    while waiting:
        dependency = waiting.pop()
        if not _applies(UV_LOCK, dependency.get("marker"), python, extra=""):
            continue
        package = _selected(packages, dependency, python)
        extras = ["", *(str(each) for each in dependency.get("extra", ()))]
        if package is not own[0]:
            lines.setdefault(id(package), _uv_line(package, python))
        for extra in extras:
            if (id(package), extra) not in seen:
                seen.add((id(package), extra))
                waiting += _dependencies(package, (extra,) if extra else ())
    return sorted(lines.values())


def _dependencies(package: Table, extras: Sequence[str]) -> Iterator[Table]:
    """Yield the dependencies of a package, or those of its extras."""
    if not extras:
        yield from _tables(UV_LOCK, package.get("dependencies", ()))
    optional = package.get("optional-dependencies")
    for extra in extras:
        yield from _tables(UV_LOCK, optional.get(extra, ()) if isinstance(optional, Mapping) else ())


def _selected(packages: Mapping[str, Sequence[Table]], dependency: Table, python: Interpreter) -> Table:
    """Return the package that a dependency means on this worker."""
    name = _name(UV_LOCK, dependency)
    candidates = [
        each
        for each in packages.get(name, ())
        if dependency.get("version", each.get("version")) == each.get("version")
        and dependency.get("source", each.get("source")) == each.get("source")
    ]
    if len(candidates) > 1:  # one for each kind of environment
        candidates = [each for each in candidates if _is_for(each.get("resolution-markers", ()), python)]
    if len(candidates) != 1:
        raise BadArchive(f"{UV_LOCK}: {len(candidates)} packages {name!r} fit; run: {EXPORT[UV_LOCK]}")
    return candidates[0]


def _is_for(markers: Iterable[object], python: Interpreter) -> bool:
    return any(_applies(UV_LOCK, marker, python, extra="") for marker in markers)


def _uv_line(package: Table, python: Interpreter) -> str:
    name = _name(UV_LOCK, package)
    kind, where = _source(package)
    if kind == "git":
        url, _, commit = where.partition("#")
        base, _, query = url.partition("?")
        folder = next((each[13:] for each in query.split("&") if each.startswith("subdirectory=")), None)
        return _url_line(name, f"git+{base}@{commit}", folder)
    sdist = package.get("sdist")
    digest = _uv_sha256(sdist) if isinstance(sdist, Mapping) else ""
    wheels = [
        (str(each.get("url", "")).rpartition("/")[2], _uv_sha256(each))
        for each in _tables(UV_LOCK, package.get("wheels", ()))
    ]
    if kind == "url":
        return _url_line(name, where, None, [digest, *(each for _, each in wheels)])
    if kind != "registry":
        raise _not_a_package(UV_LOCK, name, where)
    return _version_line(UV_LOCK, name, package, wheels, digest, python)


def _version_line(
    file: str, name: str, package: Table, wheels: Sequence[tuple[str, str]], sdist: str, python: Interpreter
) -> str:
    """Return an exact version with the hashes of what can be installed here: wheels for the interpreter, and the source."""
    version = package.get("version")
    if not isinstance(version, str):
        raise BadArchive(f"{file}: {name} has no version")
    digests = [digest for filename, digest in wheels if digest and preference(filename, python) != NEVER]
    return _line(f"{name}=={version}", [*digests, sdist])


def _url_line(name: str, url: str, subdirectory: object = None, digests: Sequence[str] = ()) -> str:
    fragment = f"#subdirectory={subdirectory}" if subdirectory else ""
    return _line(f"{name} @ {url}{fragment}", digests)


def _line(requirement: str, digests: Iterable[str]) -> str:
    if not requirement.isprintable() or requirement.endswith("\\"):
        raise BadArchive(f"{requirement[:80]!r} is not a requirement")
    return " ".join([requirement, *(f"--hash=sha256:{digest}" for digest in digests if digest)])


def _check_current(own: Table, project: Table) -> None:
    """Raises: BadArchive if the project's dependencies are others than those that were locked."""
    metadata = own.get("metadata")
    locked = _tables(UV_LOCK, metadata.get("requires-dist", ()) if isinstance(metadata, Mapping) else ())
    then = {
        (_name(UV_LOCK, each), _specifier(each.get("specifier", "")))
        for each in locked
        if "extra ==" not in str(each.get("marker", ""))
    }
    now = set()
    for text in project.get("dependencies", ()):
        try:
            requirement = Requirement(str(text))
        except InvalidRequirement:
            return  # an error for the reader of pyproject.toml
        now.add(
            (str(canonicalize_name(requirement.name)), requirement.specifier if not requirement.url else SpecifierSet())
        )
    if changed := sorted({name for name, _ in then ^ now}):
        raise BadArchive(
            f"{UV_LOCK} is older than the dependencies of pyproject.toml ({', '.join(changed[:5])}); run: {_LOCK_WORDS}"
        )


def _specifier(text: object) -> SpecifierSet:
    try:
        return SpecifierSet(str(text))
    except InvalidSpecifier:
        raise BadArchive(f"{UV_LOCK}: {str(text)[:80]!r} is not a version specifier") from None


def _applies(file: str, marker: object, python: Interpreter, **variables: Any) -> bool:
    if marker is None:
        return True
    try:
        return Marker(str(marker)).evaluate({**python.marker_variables, **variables}, context="lock_file")
    except (InvalidMarker, ValueError, RecursionError):
        raise BadArchive(f"{file}: the marker {str(marker)[:80]!r} cannot be read") from None


def _source(package: Table) -> tuple[str, str]:
    source = package.get("source")
    if not isinstance(source, Mapping) or not source:
        raise BadArchive(f"{UV_LOCK}: {_name(UV_LOCK, package)} has no source")
    return next((kind, str(where)) for kind, where in source.items())


def _not_a_package(file: str, name: str, path: str) -> BadArchive:
    return BadArchive(
        f"{file}: {name} is the directory or file {path!r}, which is not installed; copy its modules next to the handler, and "
        "remove it from the dependencies"
    )


def _name(file: str, table: Table) -> str:
    name = table.get("name")
    if not isinstance(name, str) or not name:
        raise BadArchive(f"{file}: a package has no name")
    return str(canonicalize_name(name))


def _tables(file: str, value: object) -> list[Table]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, Mapping) for each in value):
        raise BadArchive(f"{file} is not a lock file that can be read; run: {EXPORT[file]}")
    return list(value)


def _sha256(table: Table) -> str:
    hashes = table.get("hashes")
    return str(hashes.get("sha256", "")) if isinstance(hashes, Mapping) else ""


def _uv_sha256(table: Table) -> str:
    digest = str(table.get("hash", ""))
    return digest.removeprefix("sha256:") if digest.startswith("sha256:") else ""
