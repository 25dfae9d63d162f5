"""What gossip costs of the loss: its algorithms beside allreduce, on the tasks of small_tasks.py.

    horonrun -np 8 python docs/examples/gossip_convergence.py --log gossip.csv
    python docs/examples/gossip_figures.py gossip.csv --figure docs/images/gossip_loss.png

The recipe is that of Stochastic Gradient Push's experiments: Nesterov's momentum of 0.9, a learning
rate of 0.1 x examples a step / 256 that warms up for 5 of 90 parts of the training and is divided
by 10 after 30, 60 and 80 of them. In a seed all algorithms begin with the same parameters, and each
rank sees the same batches. What is logged is worked out after the training, from copies of the
parameters, so that no rank waits for another because of it.
"""

import argparse
import csv
import warnings
from itertools import product

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from tqdm import tqdm

import horon.torch as hvd
from small_tasks import Digits, Language, Learner, batches_of

POINTS = 30  # of a curve
STEPS = {"digits": 300, "language": 400}
FIELDS = ("task", "algorithm", "ranks", "seed", "step", "loss", "lowest", "highest", "mean_model",
          "distance")
CUBE = "one_peer_hypercube,rotate=1"
OPS = {
    "allreduce": hvd.Average,
    "sgp": hvd.Gossip("sgp"),
    "osgp": hvd.Gossip("osgp"),
    "dpsgd": hvd.Gossip("dpsgd", topology="ring"),
    "adpsgd": hvd.Gossip("adpsgd"),
    "asgp": hvd.Gossip("asgp"),
    "gossipgrad cube": hvd.Gossip("gossipgrad", topology=CUBE),
    "gossipgrad dissemination": hvd.Gossip("gossipgrad"),
    "gossipgrad cube alone": hvd.Gossip("gossipgrad", topology=CUBE, global_average_every=0),
    "gossipgrad dissemination alone": hvd.Gossip("gossipgrad", global_average_every=0),
    "gossipgrad cube both": hvd.Gossip("gossipgrad", topology=CUBE, what="both"),
    "gossipgrad dissemination both": hvd.Gossip("gossipgrad", what="both"),
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log", default="gossip_convergence.csv", metavar="FILE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the steps of a full run")
    parser.add_argument("--algorithms", nargs="+", choices=OPS, default=list(OPS), metavar="NAME")
    parser.add_argument("--tasks", nargs="+", choices=STEPS, default=list(STEPS))
    return parser.parse_args()


def rate(task, part) -> float:
    """The learning rate when `part` of the training is over."""
    peak = 0.1 * task.batch * hvd.size() / 256
    if part < 5 / 90:
        return peak * max(part * 90 / 5, 0.01)
    return peak * 0.1 ** sum(part >= border / 90 for border in (30, 60, 80))


def train(task, op, seed, steps, bar) -> tuple:
    """([(step, this rank's parameters as one vector), ...], the model)."""
    torch.manual_seed(seed)
    learner = Learner(task, op, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    generator = batches_of(seed, hvd.rank())
    kept = []
    for step in range(1, steps + 1):
        for group in learner.optimizer.param_groups:
            group["lr"] = rate(task, (step - 1) / steps)
        learner.learn(*task.draw(generator))
        if step * POINTS // steps > len(kept):
            vector = parameters_to_vector(learner.model.parameters()).detach()
            kept.append((step, vector.clone()))
        bar.update()
    close = getattr(learner.optimizer, "close_gossip", None)
    if close is not None:
        close()
    return kept, learner.model


@torch.no_grad()
def points_of(task, model, kept) -> list:
    """For all ranks: rows of FIELDS from "step" on. The loss is the mean over the ranks of each
    one's own parameters' loss; mean_model is the loss of the mean of the parameters."""
    own = torch.stack([vector for _, vector in kept])
    mean = hvd.allreduce(own, op=hvd.Average)
    squares = (own - mean).double().square().sum(1)
    distances = hvd.allreduce(squares, op=hvd.Average).sqrt()
    mine = torch.tensor([[loss_of(task, model, vector) for vector in own]], dtype=torch.float64)
    losses = hvd.allgather(mine).T
    return [[step, of_ranks.mean().item(), of_ranks.min().item(), of_ranks.max().item(),
             loss_of(task, model, middle), distance.item()]
            for (step, _), of_ranks, middle, distance in zip(kept, losses, mean, distances)]


def loss_of(task, model, vector) -> float:
    vector_to_parameters(vector, model.parameters())
    return task.loss(model)


def main():
    options = parse_arguments()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "gossip of gradients alone")  # that is what is looked at
    hvd.init()
    tasks = [task for task in (Digits(), Language()) if task.name in options.tasks]
    steps = {task.name: max(POINTS, int(STEPS[task.name] * options.share)) for task in tasks}
    runs = options.seeds * len(options.algorithms)
    first = hvd.rank() == 0
    with tqdm(total=runs * sum(steps.values()), unit="step", disable=not first) as bar, \
            open(options.log if first else "/dev/null", "w", newline="") as file:
        log = csv.writer(file)
        log.writerow(FIELDS)
        for seed, task, algorithm in product(range(options.seeds), tasks, options.algorithms):
            bar.set_description(f"seed {seed}, {task.name}, {algorithm}")
            kept, model = train(task, OPS[algorithm], seed, steps[task.name], bar)
            log.writerows([task.name, algorithm, hvd.size(), seed, step,
                           *(f"{number:.6g}" for number in point)]
                          for step, *point in points_of(task, model, kept))
            file.flush()
    hvd.shutdown()


if __name__ == "__main__":
    main()
