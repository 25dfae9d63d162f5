"""horonrun --plot-autotune: what it reads out of a log, what it draws, what it refuses."""

from __future__ import annotations

import os
import struct
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from launching import horonrun

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from launcher import tuning, tuning_plot  # noqa: E402
from launcher.refusal import Refusal  # noqa: E402

HEADER = ("sample,seconds,setting,against,fusion_bytes,chunk_bytes,slice_bytes,hierarchical,steps,"
          "step_seconds,bytes_per_second,verdict")
START = (128 << 20, 0, 0, 1)
STEPS = 10


class Tuning:
    """Writes the log of a tuning whose settings take `times[i]` seconds a step on a machine that
    grows slower by `drift` a second."""

    def __init__(self, settings: list[tuple[int, ...]], times: list[float], drift: float = 0.0):
        self.settings, self.times, self.drift = settings, times, drift
        self.rows: list[list[object]] = []
        self.clock = 0.0

    def sample(self, setting: int, best: int, verdict: str = "") -> float:
        seconds = self.times[setting] * (1 + self.drift * self.clock)
        self.clock += STEPS * seconds
        self.rows.append([len(self.rows) + 1, f"{self.clock:.6f}", setting, best,
                          *self.settings[setting], STEPS, f"{seconds:.9f}", int(1e8 / seconds),
                          verdict])
        return seconds

    def round(self, new: int, best: int) -> float:
        before, first, second, after = (self.sample(x, best) for x in (best, new, new, best))
        return (first + second) / (before + after)

    def compare(self, new: int, best: int) -> bool:
        """What seems faster has to be so three times."""
        for _ in range(3):
            ratio = self.round(new, best)
            if ratio >= 0.98:
                break
        self.rows[-1][-1] = ("faster" if ratio < 0.98 else "slower" if ratio > 1.02
                             else "no difference")
        return ratio < 0.98

    def run(self) -> Tuning:
        """The winner meets the start once more; the last line says what is chosen."""
        best = 0
        for new in range(1, len(self.settings)):
            if self.compare(new, best):
                best = new
        if best:
            self.end(best, self.times[best] < self.times[0])
        else:
            self.choose(0)
        return self

    def end(self, winner: int, stays: bool) -> None:
        for _ in range(6):
            self.round(winner, 0)
        self.rows[-1][-1] = "faster" if stays else "slower"
        self.choose(winner if stays else 0)

    def choose(self, setting: int) -> None:
        """A line that is no sample."""
        self.sample(setting, 0, "chosen")
        self.rows[-1][0] -= 1
        self.rows[-1][8] = 0

    def text(self) -> str:
        return "\n".join([HEADER, *(",".join(map(str, row)) for row in self.rows), ""])

    def write(self, path: Path) -> str:
        path.write_text(self.text())
        return str(path)


FIVE = [START, (32 << 20, 0, 0, 1), (128 << 20, 64 << 10, 0, 1), (0, 0, 3 << 20, 1),
        (32 << 20, 0, 1000, 0)]


def five() -> Tuning:
    return Tuning(FIVE, [0.010, 0.008, 0.0081, 0.05, 0.006]).run()


def forty() -> Tuning:
    sizes = [1 << power for power in range(10, 30)]
    settings = [START, *((size, 0, 0, 1) for size in sizes if size != START[0]),
                *((START[0], size, 0, 1) for size in sizes)]
    times = [0.010 * (1 + 0.3 * ((7 * i) % 11 - 3) / 11) for i in range(len(settings))]
    assert len(settings) == 40
    return Tuning(settings, times).run()


@pytest.fixture
def log(tmp_path: Path):
    return lambda of: tuning.read(of.write(tmp_path / "log.csv"))


# --- reading --------------------------------------------------------------------------------------


def test_comparisons_and_labels(log) -> None:
    found = log(five())
    pairs = [(one.new, one.best, one.is_won) for one in found.comparisons]
    assert pairs == [(1, 0, True), (2, 1, False), (3, 1, False), (4, 1, True), (4, 0, True)]
    assert [len(one.ratios) for one in found.comparisons] == [3, 1, 1, 3, 6]
    assert found.chosen == 4 and len(found.samples) == 56
    assert [found.label(one) for one in range(5)] == [
        "start", "fusion 32 MiB", "chunk 64 KiB", "no fusion, slice 3 MiB",
        "fusion 32 MiB, slice 1000 B, no hierarchy",
    ]  # fmt: skip


def test_a_machine_that_grows_slower_makes_no_setting_look_worse(log) -> None:
    found = log(Tuning(FIVE, [0.010, 0.008, 0.0081, 0.011, 0.006], drift=0.8).run())
    seconds = [one.step_seconds for one in found.samples if one.setting == found.chosen]
    assert median(seconds) > 0.010  # the best takes longer than the start did at the beginning
    relative = {one: median(ratios) for one, ratios in found.relative().items()}
    want = {0: 1, 1: 0.8, 2: 0.81, 3: 1.1, 4: 0.6}
    assert relative == pytest.approx(want, rel=0.02) and found.chosen == 4


def test_a_start_that_is_not_beaten(log) -> None:
    found = log(Tuning(FIVE[:2], [0.01, 0.0099]).run())
    assert found.chosen == 0 and not found.comparisons[0].is_won
    assert tuning_plot.outcome(found) == "no setting was faster than the start"


def test_where_there_was_nothing_to_try(log) -> None:
    tuned = Tuning(FIVE[:1], [0.0])
    tuned.rows.append([0, 0, 0, 0, *FIVE[0], 0, 0, 0, "chosen"])
    with pytest.raises(Refusal, match="line 2: there was nothing to try"):
        log(tuned)


def test_a_log_that_is_being_written(tmp_path: Path) -> None:
    """Cut at each of its bytes: it never holds more than it did, and there is no error once the
    first sample is there."""
    path, text = tmp_path / "log.csv", five().text()
    first = text.index("\n", len(HEADER) + 1) + 1
    for end in range(first, len(text), 7):
        path.write_text(text[:end])
        found = tuning.read(str(path))
        lines = text[:end].count("\n")
        whole = end == len(text)
        assert len(found.samples) == lines - 1 - whole and (found.chosen is None) != whole
        assert whole or tuning_plot.outcome(found) == "not at its end"


LINE = "1,0.1,0,0,8,0,0,1,10,0.01,100,"


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "does not begin with sample,seconds,setting,against,..."),
        ("\0\1\2\n" * 5, "does not begin with"),
        (HEADER.replace("steps,", "") + "\n" + LINE, "does not begin with"),
        (HEADER + "\n", "line 1: there is no sample of the start (setting 0) yet"),
        (HEADER + "\n1,0.1,1,1,8,0,0,1,10,0.01,100,\n", "no sample of the start"),
        (HEADER + "\n" + LINE + "\n" + LINE + ",\n", "line 3: 13 columns, not 12"),
        (HEADER + "\n" + LINE.replace("0.01", "") + "\n", "line 2: step_seconds is '', which is"),
        (HEADER + "\n" + LINE.replace("0.01", "nan") + "\n", "step_seconds is 'nan'"),
        (HEADER + "\n" + LINE.replace("0.01", "1e999") + "\n", "step_seconds is '1e999'"),
        (HEADER + "\n" + LINE.replace("0.01", "0.0") + "\n", "line 2: step_seconds is 0"),
        (HEADER + "\n" + LINE.replace(",8,", ",-8,") + "\n", "fusion_bytes is '-8'"),
        (HEADER + "\n" + LINE.replace(",8,", ",8.5,") + "\n", "fusion_bytes is '8.5'"),
        (HEADER + "\n" + LINE + "fast\n", "line 2: the verdict 'fast' is unknown"),
        (HEADER + "\n" + LINE + "\n" + LINE.replace(",8,", ",9,") + "\n",
         "line 3: setting 0 is not what it was before"),
        (HEADER + "\n" + LINE.replace("0,0,8", "0,3,8") + "\n", "setting 3 was not measured"),
        (HEADER + "\n" + LINE + "faster\n", "line 2: this is not the end of a comparison"),
        (HEADER + "\n" + (LINE + "\n") * 3 + LINE + "slower\n", "line 5: this is not the end"),
    ],
)
def test_garbled_logs(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(Refusal) as caught:
        tuning.read(str(path))
    assert words in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


# --- drawing --------------------------------------------------------------------------------------


def drawn(log: tuning.Log):
    """The two panels."""
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[examples]'")
    return tuning_plot.draw(log).axes


def test_what_the_picture_shows(log) -> None:
    found = log(five())
    left, right = drawn(found)
    points = {one.get_label(): one.get_offsets() for one in left.collections}
    assert len(points["sample, in its setting's colour"]) == 54
    assert points["slower than shown"][:, 1].tolist() == [left.get_ylim()[1]] * 2  # setting 3
    assert points["comparison won"][:, 1].tolist() == pytest.approx([8, 6, 6])
    best = left.lines[0].get_ydata()
    assert list(best) == pytest.approx([10, 8, 8, 8, 6, 6])
    assert [one.get_text() for one in left.texts] == [found.label(1), found.label(4)]
    assert tuple(left.texts[1].xy) == pytest.approx((found.comparisons[3].samples[-1].seconds, 6))
    order = [4, 1, 2, 0, 3]  # from the top
    labels = right.get_yticklabels()[::-1]
    assert [one.get_text() for one in labels] == [found.label(one) for one in order]
    assert [one.get_fontweight() == "bold" for one in labels] == [True, *[False] * 4]
    assert [one.get_text() for one in right.texts[::-1]] == [
        "-40 %", "-20 %", "-19 %", "0 %", "+400 %"]  # fmt: skip
    assert left.figure.get_suptitle() == (
        "Autotuning: fusion 32 MiB, slice 1000 B, no hierarchy is chosen, step time -40 %\n"
        "start: fusion 128 MiB, chunk auto, slice auto, hierarchical")


def test_a_winner_that_is_given_up_at_the_end(log) -> None:
    """It was faster for a while: the line goes back to the start."""
    lucky = Tuning(FIVE[:3], [0.01, 0.009, 0.02])
    assert lucky.compare(1, 0) and not lucky.compare(2, 1)
    lucky.times[1] = 0.011
    lucky.end(1, stays=False)
    found = log(lucky)
    assert found.chosen == 0 and not found.comparisons[-1].is_won
    left, _ = drawn(found)
    assert list(left.lines[0].get_ydata()) == pytest.approx([10, 9, 11, 10])
    assert [one.get_text() for one in left.texts] == ["fusion 32 MiB", "start"]


@pytest.mark.parametrize("tuned", [five, forty])
def test_it_can_be_read(log, tuned) -> None:
    """Each setting has a colour of its own, and no label lies over another one."""
    found = log(tuned())
    _, right = drawn(found)
    right.figure.draw_without_rendering()
    boxes = [one.get_window_extent() for one in right.get_yticklabels()]
    assert len(boxes) == len(found.settings)
    assert all(above.y0 >= below.y1 for below, above in pairwise(boxes))
    edge = right.figure.bbox
    assert all(edge.x0 <= one.x0 and one.y0 >= edge.y0 and one.y1 <= edge.y1 for one in boxes)
    colours = {line.get_color() for line in right.lines[: len(boxes)]}
    assert len(colours) == len(boxes)


# --- the command ----------------------------------------------------------------------------------


def test_horonrun_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[examples]'")
    done = horonrun("--plot-autotune", five().write(tmp_path / "a.log"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == (f"{tmp_path}/a.png: 56 samples of 5 settings; fusion 32 MiB, slice "
                           "1000 B, no hierarchy is chosen, step time -40 %\n")
    picture = (tmp_path / "a.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    assert width > 1000 and height > 500
    assert sorted(os.listdir(tmp_path)) == ["a.log", "a.png"]


def refused(path: Path, **changes: str) -> str:
    done = horonrun("--plot-autotune", str(path), **changes)
    assert done.returncode == 2 and done.stdout == "", done
    assert done.stderr.startswith("horonrun: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_horonrun_refuses(tmp_path: Path) -> None:
    assert f"cannot read the log {tmp_path}/none: No such file" in refused(tmp_path / "none")
    assert f"cannot read the log {tmp_path}: Is a directory" in refused(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\0")
    assert "is no log of autotuning: it is not text" in refused(tmp_path / "bytes")
    five().write(tmp_path / "log.png")
    assert "would be in its place: rename it" in refused(tmp_path / "log.png")
    assert (tmp_path / "log.png").read_text() == five().text()


def test_without_matplotlib_one_line_says_so(tmp_path: Path) -> None:
    package = tmp_path / "matplotlib"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError")
    five().write(tmp_path / "a.log")
    paths = f"{tmp_path}:{Path(__file__).resolve().parents[2]}"
    said = refused(tmp_path / "a.log", PYTHONPATH=paths)
    assert "--plot-autotune needs matplotlib; install it: pip install matplotlib" in said


def test_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[examples]'")
    (tmp_path / "a.png").mkdir()
    with pytest.raises(Refusal, match=f"cannot write {tmp_path}/a.png: Is a directory"):
        tuning_plot.write(five().write(tmp_path / "a.log"))
