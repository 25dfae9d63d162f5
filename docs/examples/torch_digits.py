"""Trains a small convolutional network on scikit-learn's handwritten digits (1,797 images of 8x8).

    horonrun -np 4 python docs/examples/torch_digits.py
    horonrun -np 4 python docs/examples/torch_digits.py --op dissemination

The global batch is cut into one part a rank, so that 1 rank and 4 ranks take the same steps.
Rank 0 shows a progress bar, prints the accuracy on images that were never trained on, and draws
the curves.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import horon.torch as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--op", default="average",
                        help="average, dissemination, topk:ratio=0.1, ... (docs/algorithms.md)")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", default="torch_digits.png", metavar="PATH",
                        help="where the curves go; '' draws none")
    return parser.parse_args()


def load_images(seed):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=seed,
                                   stratify=digits.target)
    return images[train], labels[train], images[test], labels[test]


def make_model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Dropout(0.25),
        torch.nn.Linear(32 * 4 * 4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10),
    )


def mean_over_ranks(total, count, name):
    """sum of `total` / sum of `count`, over all ranks."""
    both = hvd.allreduce(torch.tensor([float(total), float(count)]), op=hvd.Sum, name=name)
    return (both[0] / both[1]).item()


def train_epoch(model, optimizer, images, labels, batch_size, shuffle, bar):
    """Returns the mean loss over all ranks. Every rank draws the same order and takes its share."""
    order = torch.randperm(len(images), generator=shuffle)
    loss_sum = 0.0
    steps = len(images) // batch_size
    model.train()
    for step in range(steps):
        batch = order[step * batch_size:(step + 1) * batch_size]
        mine = batch[hvd.rank()::hvd.size()]
        optimizer.zero_grad()
        # Divided by the global batch, whatever each rank's share: the average over ranks is exact.
        loss = F.cross_entropy(model(images[mine]), labels[mine], reduction="sum")
        (loss * hvd.size() / batch_size).backward()
        optimizer.step()
        loss_sum += loss.item()
        bar.update(batch_size)
    return mean_over_ranks(loss_sum, steps * batch_size / hvd.size(), "loss")


def accuracy(model, images, labels):
    mine = slice(hvd.rank(), None, hvd.size())
    model.eval()
    with torch.no_grad():
        right = (model(images[mine]).argmax(1) == labels[mine]).sum()
    return mean_over_ranks(right, len(labels[mine]), "accuracy")


def draw(path, losses, accuracies, title):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    epochs = range(1, len(losses) + 1)
    left.plot(epochs, losses, marker=".")
    left.set(xlabel="epoch", ylabel="training loss", yscale="log")
    right.plot(epochs, [100 * a for a in accuracies], marker=".", color="tab:green")
    right.set(xlabel="epoch", ylabel="test accuracy, %")
    right.axhline(97, color="gray", linewidth=0.8, linestyle="--", label="97 %")
    right.legend(loc="lower right")
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def main():
    arguments = parse_arguments()
    hvd.init()
    # Images this small are not worth sharing among threads, and the ranks use the cores already.
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed + hvd.rank())
    shuffle = torch.Generator().manual_seed(arguments.seed)  # the same on all ranks
    images, labels, test_images, test_labels = load_images(arguments.seed)

    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=arguments.op)

    losses, accuracies, seconds = [], [], 0.0
    per_epoch = len(images) // arguments.batch_size * arguments.batch_size
    with tqdm(total=arguments.epochs * per_epoch, unit=" images", disable=hvd.rank() != 0,
              mininterval=0.5) as bar:
        for _ in range(arguments.epochs):
            start = time.perf_counter()
            losses.append(train_epoch(model, optimizer, images, labels, arguments.batch_size,
                                      shuffle, bar))
            seconds += time.perf_counter() - start
            accuracies.append(accuracy(model, test_images, test_labels))
            bar.set_postfix(loss=f"{losses[-1]:.4f}", accuracy=f"{accuracies[-1]:.2%}")

    if hvd.rank() == 0:
        speed = arguments.epochs * per_epoch / seconds
        print(f"{hvd.size()} ranks, op {arguments.op}: test accuracy {accuracies[-1]:.2%}, "
              f"loss {losses[-1]:.4f}, {speed:,.0f} images/s", flush=True)
        if arguments.plot:
            draw(arguments.plot, losses, accuracies,
                 f"digits, {hvd.size()} ranks, op {arguments.op}")
            print(f"curves: {arguments.plot}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
