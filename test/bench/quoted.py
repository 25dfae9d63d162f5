"""Horovod 0.28.1, measured over MPI on an earlier machine: it needs patches to be built."""

# By the set's name and the number of ranks.
ADASUM = {("1 MiB", 2): "0.50-1.07 ms", ("64 MiB", 2): "27 ms", ("ResNet-50", 2): "57-68 ms",
          ("1 MiB", 4): "2.7 ms", ("64 MiB", 4): "79 ms", ("ResNet-50", 4): "150 ms"}
