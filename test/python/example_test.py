"""The main job: docs/examples/torch_digits.py learns the digits on 1 and on 4 ranks."""

import re
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "torch_digits.py"


@pytest.mark.parametrize("np", [1, 4])
def test_digits(launch_script, tmp_path, np):
    for package in ("sklearn", "matplotlib", "tqdm"):
        pytest.importorskip(package, reason=f"needs {package}: pip install '.[examples]'")
    picture = tmp_path / "curves.png"
    output = launch_script(np, EXAMPLE, "--plot", str(picture))
    found = re.search(rf"^{np} ranks, op average: test accuracy ([\d.]+)%", output, re.MULTILINE)
    assert found, output
    assert float(found[1]) >= 97.0
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 5000
