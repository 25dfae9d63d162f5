"""Whom a post-mortem blames, by recordings as ranks leave them."""

from horon.launcher.aftermath import name_culprit_that_did_not_fail
from horon.launcher.postmortem import held_up, verdict
from horon.launcher.recorder import Event, Recording
from horon.launcher.standing import Standing


def recording(rank, *events, first=1):
    """Events as (time, kind, text); a submit is of 8 bytes."""
    joined = Event(first, 0.0, "joined", "shm, negotiating over shm", "3 ranks", 1)
    rest = [Event(first + 1 + i, time, kind, text, "", 1)
            for i, (time, kind, text) in enumerate(events)]
    return Recording(rank, "h", 100 + rank, [joined, *rest])


def steps(count, begin=1.0, name="grad"):
    made = []
    for i in range(count):
        made += [(begin + i, "submitted", name), (begin + i + 0.1, "finished", f"0/{name}")]
    return made


WAITS = [(9.0, "submitted", "grad"), (9.01, "waits for", "0/grad")]


def test_what_the_ranks_recorded_comes_first():
    killed = "rank 1 was killed by signal 9 (SIGKILL)"
    lines = verdict([
        recording(0, *steps(3), *WAITS, (9.5, "lost", killed)),
        recording(1, *steps(3)),
        recording(2, *steps(3), *WAITS, (9.5, "lost", killed)),
    ])
    assert lines[0] == f"culprit: {killed} (recorded by 2 ranks)"
    assert any("rank 1 on h recorded no end: its last event came 6.400 s before" in line
               for line in lines[1:]), lines
    assert any("rank 1 had not submitted 'grad', for which rank 0, rank 2 waited" in line
               for line in lines[1:]), lines


def test_of_ranks_that_were_all_ended_from_outside_the_missing_one_is_named():
    lines = verdict([
        recording(0, *steps(3), *WAITS),
        recording(1, *steps(3), (8.9, "submitted", "other")),
        recording(2, *steps(3), *WAITS),
    ])
    assert lines[0] == ("culprit: rank 1 had not submitted 'grad', for which rank 0, rank 2 waited "
                        "at the end; it last submitted 'other'"), lines
    assert len(lines) == 1, lines


def test_a_wait_lasts_while_other_threads_go_on():
    """Recorded once, however long it is; a thread of autograd's submits meanwhile."""
    def beside(rank):
        of_main = recording(rank, *steps(3), *WAITS)
        later = Event(len(of_main.events) + 1, 9.5, "submitted", "other", "", 2)
        return Recording(rank, "h", 100 + rank, [*of_main.events, later])

    lines = verdict([beside(0), recording(1, *steps(3), (8.9, "submitted", "other")), beside(2)])
    assert lines[0] == ("culprit: rank 1 had not submitted 'grad', for which rank 0, rank 2 waited "
                        "at the end; it last submitted 'other'"), lines


def test_a_rank_that_left_no_recording_is_named():
    lines = verdict([recording(r, *steps(2), (5.0, "left", "")) for r in (0, 2)])
    assert lines == ["culprit: of rank 1 there is no recording"]


def test_who_was_ended_by_horonrun_is_not_blamed_for_having_recorded_no_end():
    waiting = recording(0, *steps(3), *WAITS, (20.1, "failed", "0/grad: late"), (20.2, "left", ""))
    busy = recording(1, *steps(3))
    missing = "rank 1 had not submitted 'grad', for which rank 0 waited"
    assert "recorded no end" in verdict([waiting, busy])[0]  # ended by somebody else
    lines = verdict([waiting, busy, recording(2, *steps(4), (20.2, "left", ""))], {1})
    assert lines[0].startswith(f"culprit: {missing}") and len(lines) == 1, lines


def test_nobody_is_blamed_for_a_job_that_ended_in_peace():
    assert verdict([recording(r, *steps(4), (6.0, "left", "")) for r in range(3)]) == []
    late = [recording(r, *steps(3), *WAITS, (9.2, "finished", "0/grad"), (9.3, "left", ""))
            for r in range(3)]
    assert verdict(late) == []


def test_recordings_that_lost_their_beginning_are_compared_by_time():
    waiting = recording(0, *steps(5, begin=4.0), *WAITS, first=5000)
    behind = recording(1, *steps(4, begin=4.05), first=5000)
    ahead = recording(2, *steps(3, begin=6.0), (8.97, "submitted", "grad"),
                      (8.98, "waits for", "0/more"), first=5000)
    lines = verdict([waiting, behind, ahead])
    assert any("rank 1 had not submitted 'grad', for which rank 0 waited" in line
               and line.endswith("it last submitted it 1.950 s before rank 0")
               for line in lines), lines
    assert not any("rank 2 had not submitted 'grad'" in line for line in lines), lines


def test_a_job_that_hung_names_who_was_waited_for_long_enough():
    """What came after it was interrupted, as ranks that leave, says nothing."""
    hung = [recording(0, *steps(3), *WAITS, (20.1, "failed", "0/grad: left"), (20.2, "left", "")),
            recording(1, *steps(3), (20.0, "left", ""))]
    expected = ("culprit: rank 1 had not submitted 'grad', for which rank 0 waited at the end; "
                "it submitted it less often than rank 0: 3 and 4 times")
    assert held_up(hung, 15.0, 2.0) == [expected]
    assert held_up(hung, 10.9, 2.0) == []
    assert held_up([recording(0), recording(1)], 10.0, 0.0) == []


def standing(rank, returncode, signalled=False):
    found = Standing(rank)
    found.joined, found.left, found.signalled = True, not signalled, signalled
    found.ended_at, found.returncode = 30.0 + rank, returncode
    return found


def test_who_is_named_already_is_not_joined_by_who_only_lasted_too_long(capsys):
    """Rank 2 has left too early, and rank 0 does something long: both lack what rank 1 wants."""
    waiting = recording(1, *steps(3), *WAITS, (20.1, "failed", "0/grad: left"), (20.2, "left", ""))
    left = recording(2, *steps(3), (9.1, "left", ""))
    busy = recording(0, *steps(3))
    ranks = [standing(0, -15, signalled=True), standing(1, 3), standing(2, 7)]
    name_culprit_that_did_not_fail(ranks, [busy, waiting, left], ranks[2])
    assert capsys.readouterr().err == ""
    left.events.insert(-1, Event(len(left.events) + 1, 9.05, "submitted", "grad", "", 1))
    name_culprit_that_did_not_fail(ranks, [busy, waiting, left], ranks[1])
    said = capsys.readouterr().err
    assert said.startswith("horonrun: culprit: rank 0 had not submitted 'grad', for which"), said
