"""What pyproject.toml cannot express: the files of the repository that a wheel carries, and the error without a C compiler."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import BaseError, CCompilerError

HERE = Path(__file__).parent
CARRIED = (
    *("benchmarks", "demo", "docs", "systemd", "tests"),
    *("ARCHITECTURE.md", "CHANGELOG.md", "GLOSSARY.md", "LICENSE", "README.md", "SECURITY.md"),
    *("SPECIFICATION.md", "pyproject.toml"),
)
"""What `sockd bench`, `sockd selftest` and `sockd files` use. Modules of these folders are not installed by their own names:
`tests` or `docs` at the top of site-packages would collide with those of other packages."""
PLACE = Path("sockd", "source_tree")


class BuildPy(build_py):
    """Copies the carried files into the package; an editable install uses those of the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / PLACE
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in CARRIED:
            source = HERE / name
            if source.is_dir():
                shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", ".*"))
            else:
                shutil.copy2(source, target / name)


class BuildExt(build_ext):
    """Compiles zygote/native and sockd/kernel/native."""

    def run(self) -> None:
        try:
            super().run()
        except (BaseError, CCompilerError, OSError) as error:
            raise SystemExit(
                f"sockd: its C extensions were not compiled: {error}\n"
                "sockd: a build from source needs a C compiler and the headers of Python and Linux; on Debian and Ubuntu: "
                "apt-get install gcc libc6-dev python3-dev"
            ) from error


setup(cmdclass={"build_py": BuildPy, "build_ext": BuildExt})
