"""init(process_sets=) where the ranks do not agree: OWN_LIFE."""

import torch
from common import raises, same

import horon.torch as hvd

OWN_LIFE = True


def again():
    hvd.shutdown()
    hvd.init()
    same(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size())))
    hvd.shutdown()


def rank_before_init():
    hvd.init()
    me, size = hvd.rank(), hvd.size()
    hvd.shutdown()
    return me, size


def check_sets_that_differ_between_ranks():
    me, size = rank_before_init()
    if size == 1:
        return
    others = "rank [1] has" if size == 2 else f"ranks {list(range(1, size))} have"
    said = ("Mismatched process sets for tensor 'change of process sets': "
            f"rank [0] has [0], {others} [1].")
    with raises(hvd.HoronInvalidArgument, ValueError, words=[said]):
        hvd.init(process_sets=[hvd.ProcessSet([0] if me == 0 else [1])])
    again()


def check_a_set_that_only_one_rank_names():
    """It waits for the others, who go on to something else."""
    me, size = rank_before_init()
    if size == 1:
        return
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
    with raises(hvd.HoronInvalidArgument, words=["took different ways"]):
        hvd.init(process_sets=sets if me == 0 else sets[:1])
        hvd.allreduce(torch.ones(2), name="elsewhere")
    again()


def check_sets_in_another_order():
    """Is another set for each number: refused, too."""
    me, size = rank_before_init()
    if size == 1:
        return
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
    with raises(hvd.HoronInvalidArgument, ValueError, words=["Mismatched process sets"]):
        hvd.init(process_sets=sets if me == 0 else sets[::-1])
    again()
