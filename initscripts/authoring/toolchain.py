"""Toolchains: the compilers that make an initscript of C, Zig or Rust source, found on this machine, and one build with them.

Owns: the flags. They are for small modules that ask for no more memory than they use: one page at the start, no stack
of a megabyte, nothing that is only there for a debugger. Runs on a developer's machine; the worker never compiles source.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SDK = Path(__file__).parents[1] / "sdk"
EXAMPLES = Path(__file__).parents[1] / "examples"
RUST_TARGET = "wasm32-unknown-unknown"
STACK_BYTES = 16 * 1024
BUILD_TIMEOUT_S = 300.0
_LANGUAGES = {".c": "c", ".zig": "zig", ".rs": "rust"}
_C_FLAGS = (
    "-std=c11 -Os -flto -ffreestanding -nostdlib -mbulk-memory -Wall -Wextra "
    f"-Wl,--no-entry -Wl,--strip-all -Wl,-z,stack-size={STACK_BYTES}"
).split()
_ZIG_FLAGS = f"-target wasm32-freestanding -O ReleaseSmall -fstrip -fno-entry -rdynamic --stack {STACK_BYTES}".split()
_RUST_MANIFEST = """\
[package]
name = "initscript"
version = "0.0.0"
edition = "2021"

[lib]
crate-type = ["cdylib"]
path = {source}

[dependencies]
sockd-initscript = {{ path = {sdk} }}

[profile.release]
opt-level = "s"
lto = true
codegen-units = 1
panic = "abort"
strip = true
"""


class NoToolchain(Exception):
    """Nothing on this machine compiles the language; `fix` is a command that changes that."""

    def __init__(self, message: str, *, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class BuildFailed(Exception):
    """The compiler refused the source; `output` holds its words."""

    def __init__(self, message: str, *, output: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.output = output


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler that was found."""

    name: str
    language: str
    """"c", "zig" or "rust"."""
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """What it needs on top of the caller's environment."""


@dataclass(frozen=True, slots=True)
class Built:
    """One build that succeeded."""

    path: Path
    size_bytes: int
    toolchain: str
    took_s: float
    warnings: str = ""
    """The compiler's words, though it succeeded."""


def language_of(source: Path) -> str:
    """The language of a file, by its suffix; a directory with a Cargo.toml is Rust. Raises: BuildFailed."""
    if source.is_dir() and (source / "Cargo.toml").is_file():
        return "rust"
    if source.suffix not in _LANGUAGES:
        raise BuildFailed(
            f"{source.name} is neither C (.c), Zig (.zig) nor Rust (.rs, or a directory with a Cargo.toml)"
        )
    return _LANGUAGES[source.suffix]


def find(language: str) -> Toolchain:
    """The toolchain for a language. Raises: NoToolchain."""
    return {"c": find_c, "zig": find_zig, "rust": find_rust}[language]()


def find_c() -> Toolchain:
    """Zig's C compiler from the wheel `ziglang`, which needs nothing else; or clang with wasm-ld. Raises: NoToolchain."""
    zig = _zig()
    if zig is not None:
        return Toolchain("zig cc", "c", (zig, "cc", "-target", "wasm32-freestanding", *_C_FLAGS))
    clang = shutil.which("clang")
    if clang and shutil.which("wasm-ld"):
        return Toolchain("clang", "c", (clang, "--target=wasm32", *_C_FLAGS))
    missing = "wasm-ld, its linker for wasm, is not" if clang else "clang with wasm-ld is not, either"
    raise NoToolchain(f"the Python package ziglang is not installed, and {missing}", fix="pip install ziglang")


def find_zig() -> Toolchain:
    """Zig from the wheel `ziglang`, or one on the PATH. Raises: NoToolchain."""
    zig = _zig() or shutil.which("zig")
    if zig is None:
        raise NoToolchain("the Python package ziglang is not installed", fix="pip install ziglang")
    return Toolchain("zig", "zig", (zig, "build-exe", *_ZIG_FLAGS))


def find_rust() -> Toolchain:
    """cargo, with the target's libraries, or with Rust's sources to make them of. Raises: NoToolchain."""
    fix = f"rustup target add {RUST_TARGET}"
    cargo, rustc = (shutil.which(os.environ.get(name.upper(), name)) for name in ("cargo", "rustc"))
    if not cargo or not rustc:
        raise NoToolchain("cargo and rustc are not installed", fix=f"curl https://sh.rustup.rs | sh; {fix}")
    command = (cargo, "build", "--release", "--target", RUST_TARGET)
    # Less than the default megabyte of stack, which alone would be 16 pages.
    environment = {"RUSTFLAGS": f"-C link-arg=-zstack-size={2 * STACK_BYTES}"}
    libraries = Path(_said([rustc, "--print", "target-libdir", "--target", RUST_TARGET]))
    if any(libraries.glob("libcore-*.rlib")):
        return Toolchain("cargo", "rust", (*command, "--offline"), environment)
    sources = Path(_said([rustc, "--print", "sysroot"]), "lib/rustlib/src/rust/library")
    if not (sources / "core/src/lib.rs").is_file():
        raise NoToolchain(f"rustc has neither the target {RUST_TARGET} nor the sources to build it", fix=fix)
    # An unstable flag, which a stable cargo takes only as Rust's own build does. It looks at more of Rust's sources than
    # it builds, and those name packages that it may have to fetch.
    environment |= {"RUSTC_BOOTSTRAP": "1", "__CARGO_TESTS_ONLY_SRC_ROOT": str(sources)}
    linker = _rust_linker(rustc)
    if linker:
        environment["CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER"] = linker
    return Toolchain("cargo, building core", "rust", (*command, "-Zbuild-std=core,alloc"), environment)


def build(source: Path, output: Path) -> Built:
    """Compile one source file, or a Rust crate, to a module.

    Raises: NoToolchain, BuildFailed; then `output` is as it was before."""
    if not source.exists():
        raise BuildFailed(f"{source} is not there")
    language = language_of(source)
    toolchain = find(language)
    begun = time.monotonic()
    # Next to the output first, so that half of it is never found there.
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    compile_to = {"c": _build_c, "zig": _build_zig, "rust": _build_rust}[language]
    try:
        warnings = compile_to(temporary, toolchain, source.resolve())
        size_bytes = temporary.stat().st_size
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
    return Built(output, size_bytes, toolchain.name, time.monotonic() - begun, warnings)


def _build_c(output: Path, toolchain: Toolchain, source: Path) -> str:
    command = [*toolchain.command, "-I", str(SDK / "c"), "-o", str(output.absolute()), str(source)]
    return _run(command, toolchain, source).stderr.strip()


def _build_zig(output: Path, toolchain: Toolchain, source: Path) -> str:
    modules = ("--dep", "sockd", f"-Mroot={source}", f"-Msockd={SDK / 'zig/sockd.zig'}")
    return _run([*toolchain.command, *modules, f"-femit-bin={output.absolute()}"], toolchain, source).stderr.strip()


def _build_rust(output: Path, toolchain: Toolchain, source: Path) -> str:
    # Kept between builds, as it holds Rust's own libraries for the target, which are built only once.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sockd", "initscripts-rust")
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        # cargo puts every module under one name, so another build may not begin before this one's is taken away.
        fcntl.flock(lock, fcntl.LOCK_EX)
        manifest = source / "Cargo.toml" if source.is_dir() else _crate_of(source, cache)
        command = [*toolchain.command, "--manifest-path", str(manifest), "--target-dir", str(cache / "target")]
        done = _run([*command, "--quiet", "--message-format=json-render-diagnostics"], toolchain, source)
        made = [line for line in done.stdout.splitlines() if '"compiler-artifact"' in line and '.wasm"' in line]
        if not made:
            raise BuildFailed(f"{source.name} makes no module: its crate-type must be cdylib")
        shutil.copyfile(next(name for name in json.loads(made[-1])["filenames"] if name.endswith(".wasm")), output)
        return done.stderr.strip()


def _crate_of(source: Path, cache: Path) -> Path:
    """The manifest of a crate around one source file; the same for the same file, so that cargo knows it again."""
    crate = cache / "crates" / hashlib.sha256(os.fsencode(source)).hexdigest()[:16]
    crate.mkdir(parents=True, exist_ok=True)
    manifest = crate / "Cargo.toml"
    manifest.write_text(_RUST_MANIFEST.format(source=_toml(source), sdk=_toml(SDK / "rust")))
    return manifest


def _run(command: list[str], toolchain: Toolchain, source: Path) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **toolchain.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"{toolchain.name} did not end within {BUILD_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        words = done.stderr.strip() or f"exit status {done.returncode}"
        raise BuildFailed(f"{toolchain.name} refused {source.name}", output=words)
    return done


def _said(command: list[str]) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip()


def _rust_linker(rustc: str) -> str | None:
    """A linker for wasm: Rust's own where it came along, which cargo finds by itself, else LLVM's."""
    own = Path(_said([rustc, "--print", "sysroot"])).glob("lib/rustlib/*/bin/rust-lld")
    return None if any(own) else shutil.which("rust-lld") or shutil.which("wasm-ld")


def _zig() -> str | None:
    """The compiler in the wheel `ziglang`, if it is installed."""
    found = importlib.util.find_spec("ziglang")
    return str(Path(found.origin).parent / "zig") if found is not None and found.origin is not None else None


def _toml(path: Path) -> str:
    """A path as a TOML string."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
