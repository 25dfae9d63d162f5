"""A model whose parameters lie on several GPUs: what is not on the one that the rank works with
goes there and back."""

import copy

import torch
from common import close, same
from optimizers import sgd

import horon.torch as hvd


def check_a_model_on_several_gpus_follows_its_twin_on_the_cpu():
    torch.backends.cuda.matmul.allow_tf32 = False  # as exact as the CPU's
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    torch.manual_seed(9)
    layers = [torch.nn.Linear(64, 256), torch.nn.Linear(256, 256), torch.nn.Linear(256, 10)]
    gpus = [torch.device("cuda", (hvd.local_rank() + i) % torch.cuda.device_count())
            for i in range(len(layers))]
    for op in (hvd.Average, hvd.Adasum, hvd.Gossip("dpsgd")):
        trained = []
        for places in (gpus, [torch.device("cpu")] * len(layers)):
            model = torch.nn.ModuleList(copy.deepcopy(layer).to(place)
                                        for layer, place in zip(layers, places))
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            optimizer = hvd.DistributedOptimizer(
                sgd(model), [(f"{places[0].type}.{n}", p) for n, p in model.named_parameters()],
                op=op)
            generator = torch.Generator().manual_seed(hvd.rank())
            for _ in range(10):
                optimizer.zero_grad()
                values = torch.randn(32, 64, generator=generator)
                for layer, place in zip(model, places):
                    values = layer(values.to(place)).relu()
                values.square().mean().backward()
                optimizer.step()
            trained.append([p.detach().cpu() for p in model.parameters()])
        for ours, theirs in zip(*trained):
            close(ours, theirs, 1e-3)


def check_calls():
    first, second = (torch.device("cuda", (hvd.local_rank() + i) % 2) for i in range(2))
    for place in (first, second):
        tensor = torch.full((5,), float(hvd.rank()), device=place)
        total = hvd.allreduce(tensor, op=hvd.Sum, name=f"sum.{place.index == first.index}")
        assert total.device == place
        same(total.cpu(), torch.full((5,), hvd.size() * (hvd.size() - 1) / 2))
        rows = hvd.allgather(tensor.reshape(1, 5), name=f"rows.{place.index == first.index}")
        assert rows.device == place
        same(rows[:, 0].cpu(), torch.arange(hvd.size(), dtype=torch.float32))
