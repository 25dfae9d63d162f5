"""L1. Algorithms that reach the optimum of all ranks' data: on least squares and logistic
regressions with different minima."""

import copy

import torch
from common import close, raises, same
from gossip_optimizer import Told, interrupted, is_ended_by_ctrl_c

import horon.mixing as mixing
import horon.torch as hvd
from horon import topology
from horon.torch.meeting import meet


class LeastSquares:
    """Rank r's loss is |A x - b|^2 / 2 with its own A and b; `optimum` minimises the sum."""

    rate = 0.1

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        a = torch.eye(6) + 0.1 * torch.randn(hvd.size(), 6, 6, generator=generator)
        b = torch.randn(hvd.size(), 6, generator=generator)
        self.a, self.b = a.double(), b.double()
        self.optimum = torch.linalg.solve(torch.einsum("nij,nik->jk", self.a, self.a),
                                          torch.einsum("nij,ni->j", self.a, self.b))

    def loss(self, rank, x):
        residual = self.a[rank] @ x - self.b[rank]
        return residual @ residual / 2


class Logistic:
    """Each rank's 20 examples are labelled by a plane of its own; the optimum is Newton's."""

    rate = 0.3

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.a = torch.randn(hvd.size(), 20, 6, generator=generator).double()
        planes = torch.randn(hvd.size(), 6, generator=generator).double()
        self.signs = torch.einsum("nij,nj->ni", self.a, planes).sign()
        x = torch.zeros(6, dtype=torch.float64, requires_grad=True)
        for _ in range(20):
            total = sum(self.loss(rank, x) for rank in range(hvd.size()))
            gradient, = torch.autograd.grad(total, x, create_graph=True)
            curved = torch.stack([torch.autograd.grad(g, x, retain_graph=True)[0]
                                  for g in gradient])
            x = (x - torch.linalg.solve(curved, gradient)).detach().requires_grad_()
        self.optimum = x.detach()

    def loss(self, rank, x):
        margins = self.signs[rank] * (self.a[rank] @ x)
        return torch.nn.functional.softplus(-margins).mean() + 0.05 * x @ x


def begin(op, rate=0.1):
    x = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
    return x, hvd.DistributedOptimizer(torch.optim.SGD([x], lr=rate), op=op)


def train(x, optimizer, steps, problem=None):
    problem = problem or LeastSquares()
    for _ in range(steps):
        optimizer.zero_grad()
        problem.loss(hvd.rank(), x).backward()
        optimizer.step()


def farthest(x, problem):
    error = (x.detach() - problem.optimum).abs().max()
    return hvd.allreduce(error, op=hvd.Max, name="farthest").item()


def one_way():
    """A ring whose rank 0 sends to one more: push-sum weights differ, and hardly a link goes both
    ways."""
    n = hvd.size()
    edges = [(i, (i + 1) % n) for i in range(n)] if n > 1 else []
    return topology.Custom(n, edges + [(0, 2)] * (n > 2), mixing=mixing.Push())


def check_the_optimum_is_reached():
    size = hvd.size()
    ring, star = topology.Ring(size), topology.Star(size, mixing=mixing.Push())
    for problem, push in ((LeastSquares(), star), (Logistic(), one_way())):
        for op in (hvd.Gossip("gt", topology=ring), hvd.Gossip("gt"),
                   hvd.Gossip("exact_diffusion"), hvd.Gossip("push_diging", topology=push)):
            x, optimizer = begin(op, problem.rate)
            train(x, optimizer, 700, problem)
            assert farthest(x, problem) < 1e-10, (problem, op, farthest(x, problem))


class ByHand:
    """All ranks in one process: x, each a row, and the momentum of each one's SGD."""

    def __init__(self, starts, rate, momentum):
        self.problem, self.rate, self.momentum = LeastSquares(), rate, momentum
        self.x, self.w = starts.clone(), torch.ones(len(starts), 1, dtype=torch.float64)
        self.buffer = self.y = self.before = None

    def gradients(self):
        x = (self.x / self.w).requires_grad_()
        total = sum(self.problem.loss(rank, x[rank]) for rank in range(len(x)))
        return torch.autograd.grad(total, x)[0]

    def u(self, direction):
        self.buffer = direction if self.buffer is None else self.momentum * self.buffer + direction
        return -self.rate * self.buffer

    def gt(self, matrix):
        now = self.gradients()
        self.y = now if self.y is None else matrix @ (self.y + now - self.before)
        self.before = now
        self.x = matrix @ (self.x + self.u(self.y))

    def exact_diffusion(self, matrix):
        stepped = self.x + self.u(self.gradients())
        before, self.before = self.x if self.before is None else self.before, stepped
        self.x = matrix @ (stepped + self.x - before)

    def push_diging(self, matrix):
        now = self.gradients()
        self.y = now if self.y is None else self.y + now - self.before
        self.before = now
        self.x, self.w, self.y = (matrix @ mixed
                                  for mixed in (self.x + self.u(self.y), self.w, self.y))


def check_steps_by_hand():
    size, rate, momentum = hvd.size(), 0.05, 0.9
    generator = torch.Generator().manual_seed(5)
    starts = torch.randn(size, 6, generator=generator, dtype=torch.float64)
    for op in (hvd.Gossip("gt", topology="ring"), hvd.Gossip("exact_diffusion"),
               hvd.Gossip("push_diging", topology=one_way())):
        x = torch.nn.Parameter(starts[hvd.rank()].clone())
        sgd = torch.optim.SGD([x], lr=rate, momentum=momentum)
        optimizer = hvd.DistributedOptimizer(sgd, op=op)
        by_hand = ByHand(starts, rate, momentum)
        matrix = torch.tensor(op.graph(size).matrix(0) if size > 1 else [[1.0]],
                              dtype=torch.float64)
        for _ in range(5):
            train(x, optimizer, 1)
            getattr(by_hand, op.algorithm)(matrix)
            close(x.detach(), (by_hand.x / by_hand.w)[hvd.rank()], 1e-12)


def check_plain_gossip_stops_short_by_the_learning_rate():
    """Half the learning rate, half the distance."""
    if hvd.size() <= 3:  # all are neighbors: each exchange is exact
        return
    for problem in (LeastSquares(), Logistic()):
        distances = []
        for rate in (0.08, 0.04):
            x, optimizer = begin(hvd.Gossip("dpsgd", topology="ring"), rate)
            train(x, optimizer, int(40 / rate), problem)
            distances.append(farthest(x, problem))
        assert distances[1] > 1e-3, distances
        assert 1.7 < distances[0] / distances[1] < 2.2, distances


def check_the_mean_of_what_is_tracked_is_the_gradients():
    """After each step; on graphs that go one way, too."""
    for op in (hvd.Gossip("gt"), hvd.Gossip("push_diging"),
               hvd.Gossip("push_diging", topology=one_way())):
        x, optimizer = begin(op)
        for _ in range(10):
            train(x, optimizer, 1)
            kept = optimizer.state_dict()["horon_gossip"]["kept"]
            if hvd.size() > 1:
                close(hvd.allreduce(kept["y"][0]), hvd.allreduce(kept["gradient"][0]), 1e-12)


def check_checkpoints_go_on_bit_by_bit():
    for algorithm in ("gt", "exact_diffusion", "push_diging"):
        x, optimizer = begin(hvd.Gossip(algorithm))
        train(x, optimizer, 7)
        saved = copy.deepcopy((optimizer.state_dict(), x.detach()))
        train(x, optimizer, 5)
        other, resumed = begin(hvd.Gossip(algorithm))
        with torch.no_grad():
            other.copy_(saved[1])
        resumed.load_state_dict(saved[0])
        train(other, resumed, 5)
        same(other.detach(), x.detach())


def check_a_parameter_that_is_trained_later():
    """And one that is not for a while: of the same shape, so nothing shows that one has the
    other's memory but the optimum, which is not reached then."""
    size, problem = hvd.size(), LeastSquares()
    star = topology.Star(size, mixing=mixing.Push())
    for op in (hvd.Gossip("gt", topology="ring"), hvd.Gossip("push_diging", topology=star),
               hvd.Gossip("exact_diffusion")):
        first, second = (torch.nn.Parameter(torch.zeros(3, dtype=torch.float64)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first, second], lr=0.1), op=op)
        for step in range(760):
            first.requires_grad_(step >= 20)
            second.requires_grad_(not 30 <= step < 40)
            optimizer.zero_grad()
            problem.loss(hvd.rank(), torch.cat([first, second])).backward()
            optimizer.step()
        x = torch.cat([first, second])
        assert farthest(x, problem) < 1e-10, (op, farthest(x, problem))
        kept = optimizer.state_dict()["horon_gossip"]["kept"]
        assert size == 1 or {0, 1} == set(kept.get("y", kept.get("stepped")))


def check_a_state_of_one_rank_for_all():
    """What it remembers is of that rank's gradients: broadcast, all begin to remember anew, and
    reach the optimum; its file is refused elsewhere."""
    star, problem = topology.Star(hvd.size(), mixing=mixing.Push()), LeastSquares()
    for op in (hvd.Gossip("gt"), hvd.Gossip("exact_diffusion"),
               hvd.Gossip("push_diging", topology=star)):
        x, optimizer = begin(op)
        train(x, optimizer, 20)
        saved = hvd.broadcast_object(optimizer.state_dict(), 0)
        if hvd.rank() == 0:
            optimizer.load_state_dict(saved)
        else:
            with raises(hvd.HoronInvalidArgument, words=[
                    f"saved by rank 0 of {hvd.size()}", f"This is rank {hvd.rank()} of",
                    "broadcast_optimizer_state()"]):
                optimizer.load_state_dict(saved)
        hvd.broadcast_optimizer_state(optimizer, 0)
        hvd.broadcast_parameters([("x", x.data)], 0)
        assert optimizer.state_dict()["horon_gossip"]["weight"] == 1.0
        train(x, optimizer, 700)
        assert farthest(x, problem) < 1e-10, (op, farthest(x, problem))


def check_a_mean_forgets_what_each_remembers():
    """So any rank's checkpoint of it will do."""
    x, optimizer = begin(hvd.Gossip("gt"))
    train(x, optimizer, 20)
    optimizer.finish_gossip(average=True)
    saved = hvd.broadcast_object(optimizer.state_dict(), 0)
    other, resumed = begin(hvd.Gossip("gt"))
    with torch.no_grad():
        other.copy_(x)
    resumed.load_state_dict(saved)
    train(other, resumed, 700)
    assert farthest(other, LeastSquares()) < 1e-10
    if hvd.size() > 1:
        saved["horon_gossip"]["kept"] = {"y": [other.detach()]}
        with raises(hvd.HoronInvalidArgument, words=["older version"]):
            saved["horon_gossip"]["of"] = [hvd.rank(), hvd.size()]
            resumed.load_state_dict(saved)


class StepsLate(torch.optim.SGD):
    """Calls `first` before its step: between a rank's exchange of y and what comes after it."""

    first = staticmethod(lambda: None)

    def step(self, closure=None):
        self.first()
        return super().step(closure)


def check_ctrl_c_loses_nothing():
    """While y is mixed, while x is, and before the exact mean that a checkpoint begins with: then
    it is asked for again. All is as without, bit by bit."""
    op = hvd.Gossip("gt", topology="ring")
    plain, optimizer = begin(op)
    train(plain, optimizer, 3)
    optimizer.finish_gossip(average=True)
    train(plain, optimizer, 4)
    for place in ("y", "x", "mean"):
        x = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
        optimizer = hvd.DistributedOptimizer(StepsLate([x], lr=0.1), op=op)
        train(x, optimizer, 3 if place == "mean" else 2)
        told = Told()
        waits = not told.late and hvd.size() > 1
        if place == "x":
            optimizer.first = told.wait
        else:
            told.wait()
        if place != "mean":
            interrupted(lambda: train(x, optimizer, 1), waits, told, through=place == "y")
        elif waits:
            is_ended_by_ctrl_c(lambda: optimizer.finish_gossip(average=True))
            told.tell()
        optimizer.first = lambda: None
        assert optimizer.finish_gossip(average=True)
        if place == "mean":
            told.free()
        train(x, optimizer, 4)
        same(x.detach(), plain.detach())


def ctrl_c_before_the_last_comes(wait):
    """Ends the wait of all but the last rank, which may go on then."""
    told = Told()
    told.wait()
    if not told.late and hvd.size() > 1:
        is_ended_by_ctrl_c(wait)  # it has begun by then: the last one counts on that
        told.tell()
    return told


def check_a_meeting_is_left_with_its_job():
    """After Ctrl-C, whether the last rank has come to it or not: the next job's is waited for."""
    for comes in (False, True):
        told = ctrl_c_before_the_last_comes(meet)
        if comes and told.late:
            meet()
        told.free()
        hvd.shutdown()
        hvd.init()
        told = ctrl_c_before_the_last_comes(meet)
        meet_once_more(told)
        told.free()


def meet_once_more(told):
    """The others end the meeting that they have left before."""
    if told.late and hvd.size() > 1:
        meet()
    meet()


def check_another_meeting_is_not_that_which_was_left():
    """Nor where nothing says that it is the same."""
    meant = object()
    for left, wanted in ((None, None), (None, meant), (meant, None)):
        told = ctrl_c_before_the_last_comes(lambda: meet(purpose=left))
        if told.late:
            meet()
        told.free()
        told = ctrl_c_before_the_last_comes(lambda: meet(purpose=wanted))
        if wanted is None:
            meet_once_more(told)
        else:
            meet(purpose=wanted)
        told.free()


def check_refusals():
    with raises(ValueError, words=["order of its own"]):
        begin(hvd.Gossip("gt", overlap=True))
    if hvd.size() > 2:
        with raises(ValueError, words=["algorithm='gt'"]):
            begin(hvd.Gossip("exact_diffusion", topology="base"))
    x, optimizer = begin(hvd.Gossip("gt"))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(x.sum()).backward()
    with raises(hvd.HoronUnsupported, words=["GradScaler"]):
        scaler.step(optimizer)
    optimizer.finish_gossip()
