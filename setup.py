"""What pyproject.toml cannot express: which folder is which package, the files of the repository that a wheel carries, and the
error without a C compiler."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import BaseError, CCompilerError

HERE = Path(__file__).parent
PAGES = sorted(path.name for path in HERE.glob("*.md"))
CARRIED = ("benchmarks", "demo", "docs", "systemd", "tests", "LICENSE", "pyproject.toml", *PAGES)
"""What `sockd bench`, `sockd selftest` and `sockd files` use. Modules of these folders are not installed by their own names:
`tests` or `docs` at the top of site-packages would collide with those of other packages."""
PLACE = Path("sockd", "source_tree")
FOLDERS = {
    "sockd": "sockd",
    "sockd_initscripts": "initscripts",
    "sockd_storage_lib": "storage_lib",
    "sockd_zygote": "zygote",
}
"""Packages and where they are. As `zygote` they could collide with those of other distributions. The links of these names beside
the folders are for what imports from a checkout."""


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
    """Compiles zygote/native and sockd/linux/native."""

    def build_extension(self, ext: Extension) -> None:
        if self.plat_name.endswith("aarch64"):
            # Calls of libgcc's atomic operations would need __getauxval, which musl does not export.
            ext.extra_compile_args = [*ext.extra_compile_args, "-mno-outline-atomics"]
        super().build_extension(ext)

    def run(self) -> None:
        try:
            super().run()
        except (BaseError, CCompilerError, OSError) as error:
            raise SystemExit(
                f"sockd: its C extensions were not compiled: {error}\n"
                "sockd: a build from source needs a C compiler and the headers of Python and Linux; on Debian and Ubuntu: "
                "apt-get install gcc libc6-dev python3-dev"
            ) from error


setup(
    cmdclass={"build_py": BuildPy, "build_ext": BuildExt},
    package_dir=FOLDERS,
    packages=[
        ".".join([name, *filter(None, [below])])
        for name, folder in FOLDERS.items()
        for below in ["", *find_packages(folder)]
    ],
)
