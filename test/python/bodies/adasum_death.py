"""A program: rank 1 is killed in the middle of an Adasum; the others say what they have left.

HORON_TEST_CALL: optimizer (a step of it), or allreduce (one in place and one not).
HORON_TEST_PASS: rank 1 dies at this pass of a combination. HORON_TEST_LOCAL_OP: of the Adasum.
"""

import os

import torch

# On several hosts only mpirun says it.
if os.environ.get("HORON_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    os.environ["HORON_FAULT"] = f"reduce:kill:{os.environ['HORON_TEST_PASS']}"

import horon.torch as hvd  # noqa: E402

MARK = "may be partly written"
OP = hvd.AdasumOp(local_op=os.environ.get("HORON_TEST_LOCAL_OP", "adasum"))


def steps_until_it_fails():
    """Whether parameters of the step that failed are what they were before it, and its error."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(300, 300) for _ in range(4)))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
                                         model.named_parameters(), op=OP)
    while True:
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        try:
            model(torch.randn(4, 300) * (1 + hvd.rank())).pow(2).mean().backward()
            optimizer.step()
        except hvd.HoronUnavailable as error:
            assert all(p.isfinite().all() for p in before)
            return all(map(torch.equal, before, (p.detach() for p in model.parameters()))), error


def reduce_until_it_fails():
    """The same of tensors; the one that was in place may have changed where its error says so."""
    while True:
        there, here = torch.randn(90_000), torch.randn(90_000)
        start, begun = there.clone(), here.clone()
        handle = hvd.allreduce_async(there, op=OP, name="there")
        try:
            hvd.allreduce_(here, op=OP, name="here")
            hvd.synchronize(handle)
        except hvd.HoronUnavailable as error:
            said = MARK in str(error)
            return torch.equal(there, start) and (said or torch.equal(here, begun)), error


def main():
    hvd.init()
    optimizes = os.environ["HORON_TEST_CALL"] == "optimizer"
    kept, error = steps_until_it_fails() if optimizes else reduce_until_it_fails()
    print(f"rank {hvd.rank()} kept {kept}: {error}", flush=True)


main()
