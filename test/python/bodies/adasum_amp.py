"""DistributedOptimizer(op=Adasum) with GradScaler: on all ranks, on some, and too late."""

import torch
from adasum_optimizer import by_hand, same_models
from common import raises, same
from optimizers import batches, loss_of, make_model, sgd

import horon.torch as hvd


def state_of(model, optimizer):
    momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
    return [tensor.detach().clone() for tensor in (*model.parameters(), *momenta)]


def amp_steps(unscale, clip=None):
    """One step a batch under GradScaler; rank 0 overflows in the second one."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.Adasum)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    states = []
    for i, step in enumerate(batches(hvd.size())):
        optimizer.zero_grad()
        loss = loss_of(model, step[hvd.rank()])
        if i == 1 and hvd.rank() == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if clip is not None:
            optimizer.synchronize()
        if unscale:
            scaler.unscale_(optimizer)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        with torch.enable_grad() if clip is None else optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        states.append(state_of(model, optimizer))
    return model, states


def check_mixed_precision():
    """An overflow on one rank: no rank's parameters or momenta change by a bit in that step."""
    data = batches(hvd.size())
    for unscale, clip in ((False, None), (True, None), (True, 0.05)):
        expected = by_hand(sgd, torch.cat([data[:1], data[2:]]), clip=clip)
        model, states = amp_steps(unscale, clip)
        for before, after in zip(states[0], states[1]):
            same(before, after)
        same_models(model, expected)


def check_mixed_precision_with_what_the_optimizer_can_do():
    """Several passes, groups, compression, a process set: an overflow of rank 0 changes no bit, and
    the other steps are those of a run without a scaler and without that step."""
    ways = [{"backward_passes_per_step": 2}, {"groups": 2}, {"compression": hvd.Compression.fp16}]
    members = None
    if hvd.size() > 2:
        members = hvd.add_process_set(range(hvd.size() - 1))
    if members is not None and members.included():
        ways.append({"process_set": members})
    for arguments in ways:
        passes = arguments.get("backward_passes_per_step", 1)
        data = batches(hvd.size())
        steps = [data[i:i + passes] for i in range(0, len(data), passes)]
        trained = []
        for scaled in (True, False):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(
                sgd(model), [(f"{scaled}.{name}", p) for name, p in model.named_parameters()],
                op=hvd.Adasum, **arguments)
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
            for i, several in enumerate(steps):
                bad = i == 1
                if bad and not scaled:
                    continue
                optimizer.zero_grad()
                before = [p.detach().clone() for p in model.parameters()]
                for batch in several:
                    loss = loss_of(model, batch[hvd.rank()])
                    factor = float("inf") if bad and hvd.rank() == 0 else 1.0
                    scaler.scale(loss * factor).backward()
                scaler.step(optimizer)
                scaler.update()
                if bad:
                    for old, p in zip(before, model.parameters()):
                        same(old, p.detach())
            trained.append(model)
        same_models(*trained, 1e-3 if "compression" in arguments else 1e-5)
    if members is not None:
        hvd.remove_process_set(members)


def check_a_rank_without_gradients_under_a_scaler():
    """PyTorch says 0 then, which is no tensor: it takes part all the same."""
    if hvd.size() == 1:
        return  # its optimizer is PyTorch's own, of which a scaler wants gradients
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.Adasum)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for i, step in enumerate(batches(hvd.size())):
        without = i == 1 and hvd.rank() == 0
        optimizer.zero_grad()
        loss = scaler.scale(loss_of(model, step[hvd.rank()]))
        if not without:
            loss.backward()
        scaler.step(optimizer)
        scaler.update(1024.0 if without else None)  # which would have nothing to go by there
    for i, parameter in enumerate(model.parameters()):
        rows = hvd.allgather(parameter.detach().reshape(1, -1), name=f"without.{i}")
        for row in rows:
            same(row, rows[0])


def scaled_step(model, optimizer, scaler, batch, bad=False):
    """One step, without a scaler where that is None."""
    optimizer.zero_grad()
    loss = loss_of(model, batch) * (float("inf") if bad else 1)
    (loss if scaler is None else scaler.scale(loss)).backward()
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


def check_a_scaler_on_one_rank_only():
    """The others go by the one flag, and train as if they had one; so they do when it ends."""
    data = batches(hvd.size())
    for owner in {0, hvd.size() - 1}:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.Adasum)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if hvd.rank() == owner else None
        states = []
        for i, step in enumerate(data):
            scaled_step(model, optimizer, scaler, step[hvd.rank()], i == 1 and scaler is not None)
            states.append(state_of(model, optimizer))
            scaler = scaler if i < 2 else None
        for before, after in zip(states[0], states[1]):
            same(before, after)
        same_models(model, by_hand(sgd, torch.cat([data[:1], data[2:]])))


def check_a_scaler_that_comes_late_is_an_error():
    """On all ranks, and on one: everywhere, and no parameter has changed. Also where that rank
    alone has announced it."""
    if hvd.size() == 1:
        return
    data = batches(hvd.size())
    for owners, announced in ((range(hvd.size()), False), ([1], False), ([1], True)):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.Adasum)
        mine = hvd.rank() in owners
        scaled_step(model, optimizer, None, data[0][hvd.rank()])
        if announced and mine:
            optimizer.defer_local_steps()
        before = [p.detach().clone() for p in model.parameters()]
        scaler = torch.amp.GradScaler("cpu") if mine else None
        with raises(hvd.HoronInvalidArgument, words=["defer_local_steps"]):
            scaled_step(model, optimizer, scaler, data[1][hvd.rank()])
        for a, b in zip(before, model.parameters()):
            same(a, b.detach())


def check_local_steps_deferred_on_some_ranks_only():
    """Who begins to clip while the others do not trains with them all the same; whether it says so
    (rank 0) or shows it (the last rank), or both are there."""
    data = batches(hvd.size())
    last = hvd.size() - 1
    for saying, showing in ((True, False), (False, True), (True, True)):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.Adasum)
        for i, step in enumerate(data):
            optimizer.zero_grad()
            if i == 1 and saying and hvd.rank() == 0:
                optimizer.defer_local_steps()
            loss_of(model, step[hvd.rank()]).backward()
            shows = i > 0 and showing and hvd.rank() == last
            if shows:
                optimizer.synchronize()
            with optimizer.skip_synchronize() if shows else torch.enable_grad():
                optimizer.step()
        same_models(model, by_hand(sgd, data))
