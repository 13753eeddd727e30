"""The native kernels, built beside runtime/*.py. Everything else of the package is in pyproject.

Without a compiler the package installs all the same and uses ONNX Runtime's own kernels.
"""

import sys
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
GCC = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
GCC += ["-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unknown-pragmas"]
MSVC = ["/std:c11", "/O2", "/fp:precise"]


class BuildLibrary(build_ext):
    """Builds a library for ONNX Runtime to load: no Python module, so no Python in its name."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + SUFFIX

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return list(ext.export_symbols)

    def build_extensions(self) -> None:
        for extension in self.extensions:
            extension.extra_compile_args = MSVC if self.compiler.compiler_type == "msvc" else GCC
        super().build_extensions()


class PlatformWheel(bdist_wheel):
    """One wheel for every Python of a platform: there is none in the library."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[-1]


setup(
    ext_modules=[
        Extension(
            "specrt.runtime.libspecrt",
            sorted(glob("runtime/native/*.c")),
            depends=sorted(glob("runtime/native/*.h")),
            libraries=[] if sys.platform == "win32" else ["m"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)
