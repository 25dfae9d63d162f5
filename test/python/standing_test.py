"""Which of several failed ranks horonrun blames."""

import pytest
from horon.launcher.relay import Relay
from horon.launcher.standing import Standing


class Ended(Standing):
    """A rank that has ended at a time, with a code; with bye before it if `bye` says when."""

    def __init__(self, rank, code, at, bye=None, said=None):
        super().__init__(rank)
        self.joined = True
        self.returncode = code
        if bye is not None:
            self.left, self.left_at = True, bye
        if said is not None:
            self.raised, self.raised_at = "raised ValueError", said
        self.end(at)


@pytest.mark.parametrize(
    "culprit, other",
    [
        (Ended(0, 0, at=10.3), Ended(1, 3, at=10.2, bye=10.1)),  # gone, and the news of it late
        (Ended(0, 7, at=10.3), Ended(1, 3, at=10.2, bye=10.1)),
        (Ended(0, -9, at=10.3), Ended(1, 3, at=10.1)),  # both gone, but one was killed
        (Ended(0, 1, at=10.5, bye=10.4, said=10.0), Ended(1, 3, at=10.1)),
        (Ended(0, 7, at=10.0), Ended(1, 7, at=10.2)),
        (Ended(0, 3, at=10.5, bye=10.0), Ended(1, 0, at=11.0)),  # too late to be the cause
    ],
)
def test_the_cause_is_before_its_consequences(culprit, other):
    assert culprit.failed and other.failed
    assert culprit.blame < other.blame


def test_a_bye_is_not_held_against_a_rank_that_is_ended_later():
    """It had left in peace, and waited for a host that was lost."""
    waiting = Ended(1, -15, at=14.0, bye=10.0)
    waiting.signalled = True
    lost = Ended(2, None, at=12.0)
    lost.lost = "lost contact with host h2"
    assert lost.blame < waiting.blame


def test_words_that_are_read_after_the_end_are_the_cause_all_the_same():
    """A job may fail so fast that horonrun sees ranks end before it reads what the first said."""
    raised, other = Ended(1, 1, at=10.002), Ended(0, 3, at=10.001, bye=10.001)
    relay = Relay([other, raised], say=lambda sentence: None)
    relay.take(other, b"lost 1 rank 1 was killed", [], 10.003)  # how it ended says more
    assert not raised.raised
    relay.take(raised, b"raised ValueError: bad batch", [], 10.003)
    assert raised.blame < other.blame
    assert raised.cause() == "rank 1 raised ValueError: bad batch"
