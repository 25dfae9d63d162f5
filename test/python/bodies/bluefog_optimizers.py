"""BlueFog's optimizers against all ranks computed by hand in one process."""

import itertools
from contextlib import nullcontext

import torch
from adasum_local_steps import Counting
from common import close, raises, same
from gossip_optimizer import computed, data, flat, put
from optimizers import loss_of, make_model, sgd
from timeline import recorded, rows, shared_path, stop_timeline_together

import horon.torch as hvd
from horon import topology

try:
    import networkx
except ImportError:
    print("bluefog_optimizers: not checked, networkx is not installed")
    networkx = None

if networkx is not None:
    import horon.bluefog.torch as bf
    from horon.bluefog.common import topology_util

CHECKED = networkx is not None


def start_models():
    models = [make_model() for _ in range(hvd.size())]
    for rank, model in enumerate(models):
        put(model, flat(model) + 0.1 * rank)
    return models


def by_hand(matrices, adapt_first, every=1, passes=1):
    """matrices: W of each exchange. A step has `passes` backward passes."""
    models = start_models()
    optimizers = [sgd(model) for model in models]
    mixed = 0
    for step, batch in enumerate(data(), 1):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            for _ in range(passes):
                loss_of(model, batch[rank]).backward()
        talks = step * passes % every == 0
        if talks and not adapt_first:
            mix(models, matrices[mixed % len(matrices)])
        for optimizer in optimizers:
            optimizer.step()
        if talks and adapt_first:
            mix(models, matrices[mixed % len(matrices)])
        mixed += talks
    return flat(models[hvd.rank()])


def mix(models, matrix):
    x = torch.stack([flat(model) for model in models])
    for rank, mixed in enumerate(torch.tensor(matrix, dtype=torch.float64) @ x):
        put(models[rank], mixed)


def train(make, before_step=lambda optimizer, step: None, after_forward=lambda optimizer: None,
          passes=1, **arguments):
    model = start_models()[hvd.rank()]
    optimizer = make(sgd(model), model=model, **arguments)
    for step, batch in enumerate(data()):
        before_step(optimizer, step)
        optimizer.zero_grad()
        for _ in range(passes):
            loss = loss_of(model, batch[hvd.rank()])
            after_forward(optimizer)
            loss.backward()
        optimizer.step()
    return model, optimizer


def ring():
    bf.init()
    bf.set_topology(topology_util.RingGraph(bf.size()))
    return [topology.Ring(bf.size()).matrix()]


def check_styles():
    if not CHECKED:
        return
    matrices = ring()
    complete = [topology.FullyConnected(bf.size()).matrix()]
    for make, matrix, adapt_first in (
            (bf.DistributedAdaptThenCombineOptimizer, matrices, True),
            (bf.DistributedAdaptWithCombineOptimizer, matrices, False),
            (bf.DistributedNeighborAllreduceOptimizer, matrices, False),
            (bf.DistributedAllreduceOptimizer, complete, False)):
        close(flat(train(make)[0]), by_hand(matrix, adapt_first), 2e-5)
        kind = {"num_steps_per_communication": 2}
        close(flat(train(make, **kind)[0]), by_hand(matrix, adapt_first, 2), 2e-5)
        close(flat(train(make, passes=2, **kind)[0]), by_hand(matrix, adapt_first, 2, 2), 5e-5)
    model, _ = train(bf.DistributedAdaptThenCombineOptimizer,
                     communication_type="empty")
    close(flat(model), by_hand([torch.eye(bf.size()).tolist()], True), 2e-5)
    fresh = make_model()
    with raises(hvd.HoronInvalidArgument, words=["hierarchical_neighbor_allreduce"]):
        bf.DistributedAdaptWithCombineOptimizer(sgd(fresh), fresh, "neighbour_allreduce")
    assert not fresh._forward_hooks and not fresh._forward_pre_hooks  # another may be made


def check_communication_type_may_change():
    """From the next exchange on, by name, by value or as what it is."""
    if not CHECKED:
        return
    kinds = ("empty", "neighbor.allreduce", bf.CommunicationType.allreduce)

    def choose(optimizer, step):
        optimizer.communication_type = kinds[step % len(kinds)]

    complete = topology.FullyConnected(bf.size()).matrix()
    matrices = [torch.eye(bf.size()).tolist(), *ring(), complete]
    model, optimizer = train(bf.DistributedAdaptThenCombineOptimizer, before_step=choose)
    close(flat(model), by_hand(matrices, True), 2e-5)
    with raises(hvd.HoronInvalidArgument, words=["hierarchical_neighbor_allreduce"]):
        optimizer.communication_type = None
    by_windows = bf.DistributedWinPutOptimizer(sgd(model), model, window_prefix="no_kind")
    with raises(hvd.HoronUnsupported, words=["windows"]):
        by_windows.communication_type = "allreduce"
    by_windows.unregister_window()


def check_steps_during_backward():
    """The same to the bit, and taken before step() is called."""
    if not CHECKED:
        return
    ring()
    results = []
    for during in (False, True):
        for every, passes in ((1, 1), (2, 1), (2, 2)):
            results.append(flat(train(bf.DistributedAdaptThenCombineOptimizer, passes=passes,
                                      num_steps_per_communication=every,
                                      during_backward=during)[0]))
    for plain, layered in zip(results[:3], results[3:]):
        same(layered, plain)
    model = start_models()[bf.rank()]
    optimizer = bf.DistributedAdaptThenCombineOptimizer(sgd(model), model=model,
                                                        during_backward=True)
    before = flat(model)
    loss_of(model, data()[0][bf.rank()]).backward()
    assert (flat(model) != before).any(), "the step waits for step()"
    optimizer.step()
    loss_of(model, data()[0][bf.rank()]).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with raises(hvd.HoronUnsupported, words=["during_backward=True", "neither be clipped"]):
        optimizer.step()


def check_hooks_and_counts_of_steps():
    """Once a step, whatever takes it; also where the optimizer has been loaded."""
    if not CHECKED:
        return
    ring()
    for during, kind in itertools.product((False, True), (torch.optim.SGD, Counting)):
        model = start_models()[bf.rank()]
        optimizer = bf.DistributedAdaptThenCombineOptimizer(
            kind(model.parameters(), lr=0.1), model=model, num_steps_per_communication=2,
            during_backward=during)
        before, after = [], []
        optimizer.register_step_pre_hook(lambda *_, calls=before: calls.append(1))
        optimizer.register_step_post_hook(lambda *_, calls=after: calls.append(1))
        optimizer.load_state_dict(optimizer.state_dict())
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, data()[step][bf.rank()]).backward()
            optimizer.step()
        if kind is Counting:  # whose step calls SGD's, and torch runs hooks in both
            assert optimizer.steps == optimizer.param_groups[0]["k"] == 4, during
        else:
            assert (len(before), len(after)) == (4, 4), (during, before, after)


def check_steps_during_backward_of_a_part():
    """Of a model of which the optimizer has but the first layer: the rest is mixed and not trained,
    whether it had gradients from the start or gets them later."""
    if not CHECKED:
        return
    ring()
    for thawed in (False, True):
        results = []
        for during in (False, True):
            model = start_models()[bf.rank()]
            layers = [p for p in model.parameters() if p.requires_grad]
            for parameter in layers[2:]:
                parameter.requires_grad_(not thawed)
            optimizer = bf.DistributedAdaptThenCombineOptimizer(
                torch.optim.SGD(layers[:2], lr=0.1), model=model, during_backward=during)
            for batch in data():
                optimizer.zero_grad()
                loss_of(model, batch[bf.rank()]).backward()
                optimizer.step()
                for parameter in layers[2:]:
                    parameter.requires_grad_(True)
            results.append(flat(model))
        same(results[1], results[0])


def check_a_step_function_of_ones_own():
    """SGD's in place of Adam's is SGD."""
    if not CHECKED:
        return
    ring()
    seen = []

    def descend(parameter, gradient, group):
        seen.append(parameter)
        parameter.add_(gradient, alpha=-group["lr"])

    def with_function(optimizer, model, **arguments):
        wrapped = make(torch.optim.Adam(model.parameters(), lr=0.05), model=model, **arguments)
        wrapped.register_step_function(descend)
        return wrapped

    def of_sgd(optimizer, model, **arguments):
        return make(torch.optim.SGD(model.parameters(), lr=0.05), model=model, **arguments)

    for make, options in ((bf.DistributedAdaptThenCombineOptimizer, {}),
                          (bf.DistributedAdaptThenCombineOptimizer, {"during_backward": True}),
                          (bf.DistributedNeighborAllreduceOptimizer, {})):
        model, optimizer = train(with_function, **options)
        close(flat(model), flat(train(of_sgd, **options)[0]), 1e-6)
        assert len(seen) == len(data()) * len(list(model.parameters())), len(seen)
        seen.clear()
        optimizer.register_step_function(None)
        before = flat(model)
        loss_of(model, data()[0][bf.rank()]).backward()
        optimizer.step()
        assert not seen and (flat(model) != before).any()


def check_passes_of_the_model_are_in_the_timeline():
    if not CHECKED:
        return
    ring()
    names = [name for name, _ in make_model().named_parameters()]
    makers = (bf.DistributedAdaptThenCombineOptimizer, bf.DistributedGradientAllreduceOptimizer,
              bf.DistributedPushSumOptimizer)
    for make in makers:
        bf.init()
        ring()
        path = shared_path()
        hvd.start_timeline(path)
        hvd.barrier()
        model = make_model()
        optimizer = make(sgd(model), model=model)
        for step in range(4):
            (optimizer.turn_off_timeline if step == 3 else optimizer.turn_on_timeline)()
            optimizer.zero_grad()
            loss_of(model, data()[0][bf.rank()]).backward()
            optimizer.step()
        if make is bf.DistributedPushSumOptimizer:
            optimizer.close_gossip()
        stop_timeline_together()
        spans = rows(recorded(path))
        for rank in range(hvd.size()):
            for name in names:
                passes = [e["name"] for e in spans[rank, name]
                          if e["name"] in ("FORWARD", "BACKWARD")]
                assert passes == ["FORWARD", "BACKWARD"] * 3, (rank, name, passes)


def check_an_optimizer_that_computes_its_gradients():
    """Push-sum's steps are whole ones; the others, which count forward passes, refuse it."""
    if not CHECKED:
        return
    ring()
    model = make_model()
    computing = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for make in (bf.DistributedAdaptThenCombineOptimizer, bf.DistributedAdaptWithCombineOptimizer,
                 bf.DistributedWinPutOptimizer):
        with raises(hvd.HoronInvalidArgument, words=["LBFGS.step()", "op=hvd.Average"]):
            make(computing, model=model)
    optimizer = bf.DistributedPushSumOptimizer(computing, model=model)
    batch = data()[0][bf.rank()]
    losses = [computed(optimizer, model, batch) for _ in range(4)]
    assert len(losses[0]) > 1 and losses[0][-1] < losses[0][0], losses  # not mixed within a step
    assert optimizer.finish_gossip(average=True)
    for p in model.parameters():
        of_all = bf.allgather(p.detach()[None])
        close(of_all, of_all[:1].expand_as(of_all), 1e-6)
    optimizer.close_gossip()


def check_an_overflow_skips_this_ranks_step_only():
    if not CHECKED:
        return
    (matrix,) = ring()
    after = torch.arange(bf.size(), dtype=torch.float64) - 1.0
    after[0] = 0.0
    want = (torch.tensor(matrix, dtype=torch.float64) @ after)[bf.rank()]
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, bf.rank())
    optimizer = bf.DistributedAdaptThenCombineOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model=model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(model(torch.tensor([float("inf") if bf.rank() == 0 else 1.0])).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    close(model.weight.detach().double(), want.expand(1, 1), 1e-6)


def check_machines():
    """Nodes take part as one: each rank hears the means of its own and of the neighboring ones."""
    if not CHECKED:
        return
    ring()
    machines, local = bf.machine_size(), bf.local_size()
    bf.set_machine_topology(topology_util.RingGraph(machines))
    model, _ = train(bf.DistributedHierarchicalNeighborAllreduceOptimizer)
    between = torch.zeros(machines, machines, dtype=torch.float64)
    for to in range(machines):
        heard = {(to + step) % machines for step in (-1, 0, 1)}
        for machine in heard:
            between[to, machine] = 1 / len(heard)
    inside = torch.full((local, local), 1 / local, dtype=torch.float64)
    close(flat(model), by_hand([torch.kron(between, inside).tolist()], False), 2e-5)


def check_weights_that_change_while_training():
    if not CHECKED:
        return
    ring()
    size, rank = bf.size(), bf.rank()

    def one_way(optimizer, step):
        distance = 1 + step % max(1, size - 1)
        sends, hears = (rank + distance) % size, (rank - distance) % size
        optimizer.dst_weights = [sends] if size > 1 else []
        optimizer.src_weights = {hears: 0.25} if size > 1 else {}
        optimizer.self_weight = 0.75 if size > 1 else 1.0

    matrices = []
    for step in range(len(data())):
        matrix = torch.eye(size) * (0.75 if size > 1 else 1.0)
        for to in range(size if size > 1 else 0):
            matrix[to, (to - 1 - step % (size - 1)) % size] = 0.25
        matrices.append(matrix.tolist())
    for make, adapt_first in ((bf.DistributedAdaptThenCombineOptimizer, True),
                              (bf.DistributedAdaptWithCombineOptimizer, False)):
        close(flat(train(make, one_way)[0]), by_hand(matrices, adapt_first), 2e-5)


def delivered(optimizer):
    """All have put, or can be got from: what is mixed is then known."""
    for handle in optimizer._bluefog_way._handles:
        assert bf.win_wait(handle)
    bf.barrier()


def check_windows():
    if not CHECKED:
        return
    matrices = ring()
    # What is got was published at the neighbors' last forward pass: once more, when all had theirs.
    def got(optimizer):
        delivered(optimizer)
        optimizer._bluefog_way.begin()
        delivered(optimizer)

    for make, wait in ((bf.DistributedWinPutOptimizer, delivered),
                       (bf.DistributedPullGetOptimizer, got)):
        model, optimizer = train(make, lambda optimizer, step: bf.barrier(), wait,
                                 window_prefix="a")
        close(flat(model), by_hand(matrices, False), 2e-5)
        assert bf.get_current_created_window_names() == ["a.float32"]
        with raises(hvd.HoronInvalidArgument, words=["window_prefix"]):
            make(sgd(model), model, window_prefix="a")
        optimizer.unregister_window()
        assert bf.get_current_created_window_names() == []


def check_parameters_that_are_added():
    """Those of the model are mixed anyway; others would never be."""
    if not CHECKED:
        return
    ring()
    added = {"params": list(torch.nn.Linear(5, 5).parameters())}
    for make in (bf.DistributedAdaptThenCombineOptimizer, bf.DistributedWinPutOptimizer,
                 bf.DistributedPushSumOptimizer):
        model = start_models()[hvd.rank()]
        head = list(model.parameters())[-2:]
        optimizer = make(torch.optim.SGD(head, lr=0.1), model)
        with raises(hvd.HoronUnsupported, words=["with all parameters"]):
            optimizer.add_param_group(added)
        assert len(optimizer.param_groups) == 1
        if make is bf.DistributedAdaptThenCombineOptimizer:
            optimizer.add_param_group({"params": list(model.parameters())[:-2]})
            assert len(optimizer.param_groups) == 2
        elif make is bf.DistributedWinPutOptimizer:
            optimizer.unregister_window()


def check_more_passes_than_a_step_has_are_refused():
    """And the step that was forgotten is still one of all ranks."""
    if not CHECKED:
        return
    ring()
    matched = train(bf.DistributedNeighborAllreduceOptimizer, passes=2,
                    num_steps_per_communication=2)[0]
    model = start_models()[bf.rank()]
    optimizer = bf.DistributedNeighborAllreduceOptimizer(sgd(model), model=model,
                                                         num_steps_per_communication=2)
    for batches in data():
        optimizer.zero_grad()
        for _ in range(2):
            loss_of(model, batches[bf.rank()]).backward()
        with raises(AssertionError, words=["num_steps_per_communication=2", "step()", "no_grad"]):
            loss_of(model, batches[bf.rank()])
        with torch.no_grad():
            loss_of(model, batches[bf.rank()])
        optimizer.step()
    same(flat(model), flat(matched))


def check_an_exchange_that_fails():
    """The next ones come when they are due."""
    if not CHECKED:
        return
    ring()
    for make in (bf.DistributedAdaptThenCombineOptimizer, bf.DistributedAdaptWithCombineOptimizer):
        model = start_models()[bf.rank()]
        optimizer = make(sgd(model), model=model, num_steps_per_communication=2)
        way = optimizer._bluefog_way
        ended = []

        def end(way=way, ended=ended):
            type(way).end(way)
            ended.append(step)
            if len(ended) == 1:
                raise hvd.HoronLate("made up")

        way.end = end
        for step, batch in enumerate(data()[:6]):
            optimizer.zero_grad()
            loss_of(model, batch[bf.rank()]).backward()
            with raises(hvd.HoronLate, words=["made up"]) if step == 1 else nullcontext():
                optimizer.step()
        assert ended == [1, 3, 5], ended


def check_windows_wait_for_nobody():
    """Without any order between the ranks: values stay finite, and all approach each other."""
    if not CHECKED:
        return
    ring()
    for make in (bf.DistributedWinPutOptimizer, bf.DistributedPullGetOptimizer):
        model, optimizer = train(make, num_steps_per_communication=2)
        bf.barrier()
        optimizer.param_groups[0]["lr"] = 0.0
        for _ in range(40):
            loss_of(model, data()[0][bf.rank()])
            optimizer.step()
            bf.barrier()
        mean = bf.allreduce(flat(model))
        assert (flat(model) - mean).abs().max() < 0.02
        optimizer.unregister_window()


def check_push_sum_on_a_star():
    """The centre has more neighbors than the others: without weights the mean would be lost."""
    if not CHECKED:
        return
    bf.init()
    bf.set_topology(topology_util.StarGraph(bf.size()))
    model = start_models()[bf.rank()]
    before = bf.allreduce(flat(model))
    optimizer = sgd(model)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer = bf.DistributedPushSumOptimizer(optimizer, model, num_steps_per_communication=2)
    for _ in range(20):  # how far they come in a while depends on who runs when
        for _ in range(120):
            optimizer.zero_grad()
            loss_of(model, data()[0][bf.rank()]).backward()
            optimizer.step()
        optimizer.finish_gossip()
        near = float((flat(model) - before).abs().max() < 0.02)
        if bf.allreduce(torch.tensor([near])) == 1:  # all are
            break
    weight = (optimizer.state_dict()["horon_gossip"]["weights"] or [1.0])[0]
    total = bf.allreduce(torch.cat([flat(model) * weight, torch.tensor([weight]).double()]))
    close(total[:-1], before, 1e-5)
    assert abs(total[-1] - 1) < 1e-6
    assert (flat(model) - before).abs().max() < 0.02
    assert bf.size() <= 2 or weight != 1.0
    optimizer.close_gossip()


def parts_of(step, rank, size):
    """(what rank keeps in this step, {the one neighbor that it sends to: the rest})."""
    if size == 1:
        return 1.0, {}
    own = 0.25 if (rank + step) % 3 == 0 else 0.5
    return own, {(rank + (-1) ** step) % size: 1 - own}


def push_sum_by_hand(parts):
    """x += w u(z), then x and w are shared out; z = x / w."""
    size = hvd.size()
    models, w = start_models(), torch.ones(size, dtype=torch.float64)
    optimizers = [sgd(model) for model in models]
    for step, batch in enumerate(data()):
        x = []
        for rank, (model, optimizer) in enumerate(zip(models, optimizers)):
            optimizer.zero_grad()
            loss_of(model, batch[rank]).backward()
            optimizer.step()
            x.append(w[rank] * flat(model))
        matrix = torch.zeros(size, size, dtype=torch.float64)
        for rank in range(size):
            matrix[rank, rank], given = parts(step, rank, size)
            for to, weight in given.items():
                matrix[to, rank] = weight
        x, w = matrix @ torch.stack(x), matrix @ w
        for rank, model in enumerate(models):
            put(model, x[rank] / w[rank])
    return flat(models[hvd.rank()])


def check_push_sum_by_other_parts_in_each_step():
    """As BlueFog's examples do, in step."""
    if not CHECKED:
        return
    ring()

    def one_peer(optimizer, step):
        optimizer.force_barrier = True
        optimizer.self_weight, optimizer.dst_weights = parts_of(step, bf.rank(), bf.size())
        bf.barrier()

    model, optimizer = train(bf.DistributedPushSumOptimizer, one_peer)
    close(flat(model), push_sum_by_hand(parts_of), 2e-5)
    near = (bf.rank() + 1) % bf.size()
    for own, parts, word in ((0.5, None, "or neither"), (None, {}, "or neither"),
                             (0.5, {near: 0.25} if bf.size() > 1 else {}, "sum to"),
                             (0.5, [near] if bf.size() > 1 else [], "sum to"),
                             (0.0, {near: 1.0} if bf.size() > 1 else {}, "sum to"),
                             (0.5, {bf.size(): 0.5}, "by the topology")):
        optimizer.self_weight, optimizer.dst_weights = own, parts
        with raises(hvd.HoronInvalidArgument, words=[word]):
            optimizer.step()
    optimizer.self_weight = optimizer.dst_weights = None
    optimizer.step()
    optimizer.close_gossip()


def check_windows_in_step():
    """force_barrier in place of the order that check_windows makes."""
    if not CHECKED:
        return
    matrices = ring()

    def in_step(optimizer, step):
        optimizer.force_barrier = True
        bf.barrier()

    model, optimizer = train(bf.DistributedWinPutOptimizer, in_step)
    close(flat(model), by_hand(matrices, False), 2e-5)
    optimizer.unregister_window()


def check_lists_of_models():
    """Of one model's two halves; gradients are those of allreduce, parameters mixed as one's."""
    if not CHECKED:
        return
    ring()
    by_windows = (bf.DistributedWinPutOptimizer, bf.DistributedPullGetOptimizer)
    for make in (bf.DistributedGradientAllreduceOptimizer, bf.DistributedAllreduceOptimizer,
                 bf.DistributedNeighborAllreduceOptimizer, bf.DistributedAdaptThenCombineOptimizer,
                 bf.DistributedAdaptWithCombineOptimizer, bf.DistributedPushSumOptimizer,
                 *by_windows):
        results = []
        for parts in (lambda model: model, lambda model: [model[:1], model[1:]]):
            model = make_model()
            optimizer = make(sgd(model), model=parts(model))
            loss_of(model, data()[0][bf.rank()]).backward()
            optimizer.step()
            if make is bf.DistributedPushSumOptimizer:
                optimizer.close_gossip()
            if make in by_windows:
                optimizer.unregister_window()
            results.append(flat(model))
        if make is not bf.DistributedPushSumOptimizer:  # of which no two runs are alike
            close(results[1], results[0], 1e-6)
