"""mpi4py's communicators in init() and ProcessSet, under mpirun: OWN_LIFE."""

import torch
from common import raises, same
from mpi4py import MPI

import horon.torch as hvd

OWN_LIFE = True


def check_communicators():
    world = MPI.COMM_WORLD
    hvd.init(comm=world)
    assert (hvd.rank(), hvd.size()) == (world.Get_rank(), world.Get_size())
    odd = world.Split(world.Get_rank() % 2, key=-world.Get_rank())
    with raises(hvd.HoronUnsupported, ValueError, words=["ProcessSet"]):
        hvd.init(comm=odd)
    mine = [rank for rank in range(hvd.size()) if rank % 2 == hvd.rank() % 2]
    described = hvd.ProcessSet(odd)  # of other ranks on each: not yet one of the job
    assert described.ranks == mine
    of_first = world.Create(world.Get_group().Incl([0]))  # no communicator on the others
    first = hvd.add_process_set([0] if of_first == MPI.COMM_NULL else hvd.ProcessSet(of_first))
    assert first.ranks == [0] and first.included() == (hvd.rank() == 0)
    if first.included():
        same(hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=first), torch.ones(2))
    hvd.remove_process_set(first)
    same(torch.tensor(world.allreduce(hvd.rank())), torch.tensor(sum(range(hvd.size()))))
