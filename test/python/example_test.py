"""The examples in docs/examples: they run, and learn."""

import csv
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import in_full_tier

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def needs(*packages):
    for package in packages:
        pytest.importorskip(package, reason=f"needs {package}: pip install '.[examples]'")


def digits(launch_script, tmp_path, np, *arguments, **options):
    """Accuracy in percent and images a second, as the last line says, after a picture was drawn."""
    needs("sklearn", "matplotlib", "tqdm")
    picture = tmp_path / "curves.png"
    script = EXAMPLES / "torch_digits.py"
    output = launch_script(np, script, "--plot", str(picture), *arguments, **options)
    found = re.search(rf"^{np} ranks, op average: test accuracy ([\d.]+)%, loss [\d.]+, "
                      r"([\d,]+) images/s$", output, re.MULTILINE)
    assert found, output
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 5000
    return float(found[1]), int(found[2].replace(",", ""))


def test_digits(launch_script, tmp_path):
    """One rank and four, which take the same steps with the same global batch."""
    one, one_speed = digits(launch_script, tmp_path, 1)
    four, four_speed = digits(launch_script, tmp_path, 4)
    assert one >= 97 and four >= 97 and abs(one - four) <= 1.5, (one, four)
    assert one_speed > 0 and four_speed > 0


@in_full_tier
def test_digits_mpirun(launch_script, tmp_path, needs_mpi):
    """The same program, which MPI starts, and whose ranks negotiate over it."""
    accuracy, _ = digits(launch_script, tmp_path, 4, launcher="mpirun",
                         env={"HORON_CONTROLLER": "mpi"})
    assert accuracy >= 97


@in_full_tier
def test_gossip_beside_allreduce(launch_script, tmp_path):
    """Both programs, with what one seed of 30 steps is good for: all begin alike, and learn."""
    needs("sklearn", "matplotlib", "tqdm")
    log, picture = tmp_path / "log.csv", tmp_path / "gossip.png"
    launch_script(2, EXAMPLES / "gossip_convergence.py", "--log", str(log), "--seeds", "1",
                  "--share", "0")
    with open(log, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 12 * 30
    for first, last in zip(rows[::30], rows[29::30]):
        assert first["algorithm"] == last["algorithm"]
        assert float(last["loss"]) < float(first["loss"]), (first, last)
        assert float(last["lowest"]) <= float(last["loss"]) <= float(last["highest"])
        assert float(last["distance"]) < 1e-4 or last["algorithm"] != "allreduce"
    command = [sys.executable, EXAMPLES / "gossip_figures.py", log, "--figure", picture]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(re.findall(r"^\| (digits|language) \| allreduce \| .*\| 1.00 \(1.00-1.00\) \|",
                          table, re.MULTILINE)) == 2, table
    assert table.count("\n") == 2 + 2 * 12, table
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 5000


@in_full_tier
def test_adasum_beside_sum_and_average(launch_script, tmp_path):
    """A job of two ranks learns what one process does that reckons Adasum by its definition."""
    needs("sklearn", "matplotlib")
    script = EXAMPLES / "adasum_convergence.py"
    results, picture = {name: tmp_path / name for name in ("job", "simulation")}, tmp_path / "a.png"
    short = ("--seeds", "1", "--share", "0.02")
    launch_script(2, script, "--results", str(results["job"]), *short)
    alone = [sys.executable, script, "--results", results["simulation"], "--simulate", *short]
    subprocess.run(alone, check=True, stdout=subprocess.DEVNULL)
    curves = {}
    for name, path in results.items():
        for row in map(json.loads, path.read_text().splitlines()):
            if row["ranks"] == 2:
                curves.setdefault((row["task"], row["op"]), []).append(row["scores"])
    assert len(curves) == 2 * 3
    for (task, op), (job, simulation) in curves.items():
        # What rounding may do to some of 360 digits; to bits per character.
        assert job == pytest.approx(simulation, abs=0.03 if task == "digits" else 0.01), (task, op)
    language = {op: scores[0][-1] for (task, op), scores in curves.items() if task == "language"}
    assert language["sum"] < language["adasum"] < language["average"] - 0.1, language
    command = [sys.executable, script, "--results", results["simulation"], "--plot", picture]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(re.findall(r"^\| (digits|language) \| [1248] \|", table, re.MULTILINE)) == 8, table
    # Steps to the target, which runs as short as these reach never.
    assert len(re.findall(r"^\| (digits|language) \| [\d.]+ \| [1248] \| reached by 0 of 1 \|",
                          table, re.MULTILINE)) == 8, table
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 5000


@in_full_tier
def test_adasums_cases(tmp_path):
    needs("sklearn", "matplotlib")
    picture = tmp_path / "cases.png"
    subprocess.run([sys.executable, EXAMPLES / "adasum_cases.py", "--plot", picture], check=True)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 5000


def write_idx(path, array):
    head = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
    path.write_bytes(head + array.astype("uint8").tobytes())


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """Files of MNIST's names and format, with scikit-learn's digits in them."""
    needs("sklearn")
    from sklearn.datasets import load_digits

    digits = load_digits()
    folder = tmp_path_factory.mktemp("mnist")
    for part, rows in (("train", slice(0, 1437)), ("t10k", slice(1437, None))):
        write_idx(folder / f"{part}-images-idx3-ubyte", digits.images[rows] * 15)
        write_idx(folder / f"{part}-labels-idx1-ubyte", digits.target[rows])
    return folder


@pytest.mark.parametrize("np, options, sets", [
    (2, ["--fp16-allreduce", "--gradient-predivide-factor", "2"], [0]),
    (3, ["--process-sets"], [0, 1]),
    pytest.param(2, ["--use-adasum"], [0], marks=in_full_tier),
], ids=["all ranks", "process sets", "adasum"])
def test_a_horovod_script_with_its_import_changed(
    launch_script, tmp_path, mnist, np, options, sets
):
    text = (EXAMPLES / "torch_mnist_horovod.py").read_text()
    changed, count = re.subn(r"^import horovod\.torch as hvd$", "import horon.torch as hvd", text,
                             flags=re.MULTILINE)
    assert count == 1
    script = tmp_path / "torch_mnist.py"
    script.write_text(changed)
    output = launch_script(np, script, "--data", str(mnist), "--epochs", "3", *options)
    for rank in sets:
        found = re.findall(rf"^set of rank {rank}, epoch 3: loss [\d.]+, accuracy ([\d.]+)%",
                           output, re.MULTILINE)
        assert len(found) == 1 and float(found[0]) > 80, output
