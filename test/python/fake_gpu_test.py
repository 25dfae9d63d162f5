"""Tensors of a GPU through Python on a machine that has none. bodies/fake_gpu.py is the program."""

import os
import shutil
from pathlib import Path

import pytest

import horon

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fake_cuda(tmp_path):
    """The variables with which Python finds Horon with a CUDA plugin of fake GPUs."""
    built = Path(os.environ.get("HORON_BUILD_DIR", ROOT / "build")) / "fake_cuda"
    if not (built / "libhoron_cuda.so").exists():
        pytest.skip(f"no fake CUDA plugin in {built}: cmake --build {built.parent} "
                    "--target horon_fake_cuda horon_no_driver")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(horon.__file__).parent, tmp_path / "horon", ignore=ignored)
    shutil.copy(built / "libhoron_cuda.so", tmp_path / "horon")
    return {"PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": str(built)}


@pytest.mark.parametrize("np", [1, 2, 3])
def test_tensors_of_a_gpu(launch, fake_cuda, np):
    launch(np, "fake_gpu", env=fake_cuda)
