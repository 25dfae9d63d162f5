"""A model whose parameters lie on several GPUs: a rank works with one."""

import torch
from common import raises

import horon.torch as hvd
from horon.errors import HoronInvalidArgument


def check_a_model_on_two_gpus_is_refused():
    model = torch.nn.ParameterDict({f"on_{i}": torch.ones(2, device=f"cuda:{i}")
                                    for i in range(2)})
    for op in (hvd.Average, hvd.Adasum):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with raises(HoronInvalidArgument, of=str(op),
                    words=["one GPU", "'on_0' on cuda:0", "'on_1' on cuda:1"]):
            hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=op)
