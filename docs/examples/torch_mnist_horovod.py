"""The usual MNIST script of a Horovod user. It says `import horovod.torch`; on Horon it says
`import horon.torch`, and nothing else changes.

    sed s/horovod.torch/horon.torch/ torch_mnist_horovod.py > torch_mnist.py
    horonrun -np 4 python torch_mnist.py --data FOLDER [--process-sets] [--use-adasum]

FOLDER holds MNIST's four files, unpacked (train-images-idx3-ubyte and so on), or others of that
format. With --process-sets even and odd ranks train a model each.
"""

import argparse
import os
import struct

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(description="MNIST on Horovod")
    parser.add_argument("--data", required=True, metavar="FOLDER")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.02, help="of one rank")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--use-adasum", action="store_true")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    parser.add_argument("--process-sets", action="store_true")
    return parser.parse_args()


def read_idx(path):
    """A file of MNIST's format: magic number with the rank, sizes, bytes."""
    with open(path, "rb") as file:
        (magic,) = struct.unpack(">I", file.read(4))
        shape = struct.unpack(f">{magic & 0xFF}I", file.read(4 * (magic & 0xFF)))
        return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).reshape(shape)


def read_images(folder, part):
    images = read_idx(os.path.join(folder, f"{part}-images-idx3-ubyte")).float().unsqueeze(1)
    labels = read_idx(os.path.join(folder, f"{part}-labels-idx1-ubyte")).long()
    return TensorDataset((images / 255 - 0.3) / 0.3, labels)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = torch.nn.Linear(32 * 4 * 4, 64)
        self.fc2 = torch.nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.adaptive_max_pool2d(F.relu(self.conv2(x)), 4)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def train(model, optimizer, loader):
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()


def test(model, loader, count, process_set):
    """Mean loss and accuracy over the ranks of the set."""
    model.eval()
    loss = right = 0.0
    with torch.no_grad():
        for images, labels in loader:
            output = model(images)
            loss += F.cross_entropy(output, labels, reduction="sum").item()
            right += (output.argmax(1) == labels).sum().item()
    loss = hvd.allreduce(torch.tensor(loss / count), name="avg_loss", process_set=process_set)
    right = hvd.allreduce(torch.tensor(right / count), name="avg_right", process_set=process_set)
    return loss.item(), right.item()


def sets_of_ranks(arguments):
    """Initialises Horovod; the process set that this rank trains in."""
    if not arguments.process_sets:
        hvd.init()
        return hvd.global_process_set
    hvd.init(process_sets="dynamic")
    even = hvd.add_process_set(list(range(0, hvd.size(), 2)))
    odd = hvd.add_process_set(list(range(1, hvd.size(), 2)))
    return even if even.included() else odd


def main():
    arguments = parse_arguments()
    mine = sets_of_ranks(arguments)
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    ranks, me = mine.size(), mine.rank()

    data = {part: read_images(arguments.data, part) for part in ("train", "t10k")}
    samplers = {
        part: DistributedSampler(images, num_replicas=ranks, rank=me)
        for part, images in data.items()
    }
    loaders = {
        part: DataLoader(images, arguments.batch_size, sampler=samplers[part])
        for part, images in data.items()
    }

    model = Net()
    scale = 1 if arguments.use_adasum else ranks
    optimizer = torch.optim.SGD(
        model.parameters(), lr=arguments.lr * scale, momentum=arguments.momentum
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if arguments.use_adasum else hvd.Average,
        gradient_predivide_factor=arguments.gradient_predivide_factor,
        process_set=mine,
    )

    for epoch in range(1, arguments.epochs + 1):
        samplers["train"].set_epoch(epoch)
        train(model, optimizer, loaders["train"])
        loss, accuracy = test(model, loaders["t10k"], len(samplers["t10k"]), mine)
        if me == 0:
            print(f"set of rank {hvd.rank()}, epoch {epoch}: loss {loss:.4f}, "
                  f"accuracy {accuracy:.2%}", flush=True)  # fmt: skip
    hvd.barrier()  # sets end at different times, and who leaves ends the job for all
    if arguments.process_sets and hvd.rank() == 0:
        assert not hvd.remove_process_set(hvd.global_process_set)


if __name__ == "__main__":
    main()
