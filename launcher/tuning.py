"""The log of autotuning (HORON_AUTOTUNE_LOG, docs/autotune.md), read back for --plot-autotune.

Pure but for reading the file. A log that is still being written is read as far as it is whole.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from statistics import fmean, median

from .refusal import Refusal

COLUMNS = (
    "sample", "seconds", "setting", "against", "fusion_bytes", "chunk_bytes", "slice_bytes",
    "hierarchical", "steps", "step_seconds", "bytes_per_second", "verdict",
)  # fmt: skip
FASTER, CHOSEN = "faster", "chosen"
_VERDICTS = ("", FASTER, "slower", "no difference", CHOSEN)
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
START = 0  # the number of the setting that the job began with


def size(count: int) -> str:
    """Bytes in the largest unit that gives a whole number."""
    for unit, name in _UNITS:
        if count and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"


@dataclass(frozen=True)
class Setting:
    """What is tuned. A chunk or slice of 0 bytes is as large as the runtime chooses."""

    fusion_bytes: int
    chunk_bytes: int
    slice_bytes: int
    hierarchical: int

    def words(self) -> tuple[str, ...]:
        """Each part in two words or so."""
        return (
            f"fusion {size(self.fusion_bytes)}" if self.fusion_bytes else "no fusion",
            f"chunk {size(self.chunk_bytes) if self.chunk_bytes else 'auto'}",
            f"slice {size(self.slice_bytes) if self.slice_bytes else 'auto'}",
            "hierarchical" if self.hierarchical else "no hierarchy",
        )

    def unlike(self, start: Setting) -> str:
        """What differs from the start."""
        pairs = zip(self.words(), start.words(), strict=True)
        return ", ".join(mine for mine, its in pairs if mine != its) or "start"


@dataclass(frozen=True)
class Sample:
    """The steps between two lines of the log."""

    seconds: float  # since tuning began
    setting: int
    against: int  # the best setting so far
    step_seconds: float
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """Samples of a new setting and of the best so far, up to a verdict, in rounds of four: best,
    new, new, best."""

    samples: tuple[Sample, ...]
    is_won: bool  # by the new one

    @property
    def best(self) -> int:
        return self.samples[-1].against

    @property
    def new(self) -> int:
        return next(one.setting for one in self.samples if one.setting != self.best)

    @property
    def ratios(self) -> list[float]:
        """The new one's step time over the best's, by round."""
        seconds = [one.step_seconds for one in self.samples]
        rounds = (seconds[at : at + 4] for at in range(0, len(seconds), 4))
        return [(first + second) / (before + after) for before, first, second, after in rounds]

    def step_seconds(self, setting: int) -> float:
        """Mean over the samples of one of the two."""
        return fmean(one.step_seconds for one in self.samples if one.setting == setting)


@dataclass(frozen=True)
class Log:
    """A log. `chosen` is None while tuning is not at its end."""

    settings: dict[int, Setting]
    samples: list[Sample]
    comparisons: list[Comparison]
    chosen: int | None

    def label(self, setting: int) -> str:
        """What sets it apart from the start."""
        return self.settings[setting].unlike(self.settings[START])

    def relative(self) -> dict[int, list[float]]:
        """Step times of each setting over those of the start, one a round.

        A setting is compared with the best at that time, and that one's place is known from its
        own comparisons: so a machine that grows slower meanwhile makes no setting look worse.
        """
        found = {START: [1.0]}
        for one in self.comparisons:
            by = median(found.get(one.best, [1.0]))
            found.setdefault(one.new, []).extend(ratio * by for ratio in one.ratios)
        return found


def read(path: str) -> Log:
    """Raises Refusal, with one line on what is wrong."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
    except OSError as error:
        raise Refusal(f"cannot read the log {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Refusal(f"{path} is no log of autotuning: it is not text") from None
    whole = text[: text.rfind("\n") + 1].splitlines()  # the rest is being written
    if not whole or tuple(whole[0].split(",")) != COLUMNS:
        raise Refusal(
            f"{path} is no log of autotuning: it does not begin with {','.join(COLUMNS[:4])},..."
        )
    try:
        return _log(list(csv.reader(whole[1:])))
    except ValueError as error:
        raise Refusal(f"{path}, {error}") from None


def _log(rows: list[list[str]]) -> Log:
    """Raises ValueError that names the line."""
    settings: dict[int, Setting] = {}
    samples: list[Sample] = []
    for number, row in enumerate(rows, start=2):
        try:
            sample, setting = _parsed(row)
            if settings.setdefault(sample.setting, setting) != setting:
                raise ValueError(f"setting {sample.setting} is not what it was before")
            if sample.against not in settings:
                raise ValueError(f"setting {sample.against} was not measured before")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        samples.append(sample)
    if START not in settings:
        raise ValueError(f"line {len(rows) + 1}: there is no sample of the start (setting 0) yet")
    # The last line is no sample: it says what stays.
    chosen = samples.pop().setting if samples[-1].verdict == CHOSEN else None
    if not samples:
        raise ValueError("line 2: there was nothing to try, so there is nothing to draw")
    return Log(settings, samples, _comparisons(samples), chosen)


def _parsed(row: list[str]) -> tuple[Sample, Setting]:
    if len(row) != len(COLUMNS):
        raise ValueError(f"{len(row)} columns, not {len(COLUMNS)}")
    cells = dict(zip(COLUMNS, row, strict=True))
    if cells["verdict"] not in _VERDICTS:
        raise ValueError(f"the verdict '{cells['verdict']}' is unknown")
    step_seconds = _number(cells, "step_seconds", float)
    if step_seconds == 0 and cells["verdict"] != CHOSEN:
        raise ValueError("step_seconds is 0")
    seconds = _number(cells, "seconds", float)
    setting, against, *parts = (_number(cells, name, int) for name in COLUMNS[2:8])
    sample = Sample(seconds, setting, against, step_seconds, cells["verdict"])
    return sample, Setting(*parts)


def _number(cells: dict[str, str], name: str, kind: type) -> float:
    try:
        value = kind(cells[name])
    except ValueError:
        value = -1
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is '{cells[name]}', which is no number")
    return value


def _comparisons(samples: list[Sample]) -> list[Comparison]:
    """Those that have come to an end. Raises ValueError for samples in another order."""
    found: list[Comparison] = []
    since = 0
    for end, sample in enumerate(samples, start=1):
        if not sample.verdict:
            continue
        mine, since = tuple(samples[since:end]), end
        best = sample.against
        new = mine[-2].setting if len(mine) > 1 else best
        rounds, odd = divmod(len(mine), 4)
        order = [one.setting for one in mine]
        if odd or best == new or order != [best, new, new, best] * rounds:
            raise ValueError(f"line {end + 1}: this is not the end of a comparison")
        found.append(Comparison(mine, sample.verdict == FASTER))
    return found
