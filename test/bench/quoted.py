"""Horovod 0.28.1 over MPI, as measured on an earlier machine of 2 cores: it needs patches to be
built. By the name of what is reduced and the number of ranks."""

# With its defaults; with a cycle of 0.1 ms, a cache of 4,096 and an MPI that yields.
ALLREDUCE = {
    ("4 B", 2): "1071 us; 332 us",
    ("1 KiB", 2): "1070 us; 334 us",
    ("64 KiB", 2): "1071 us; 169 us",
    ("1 MiB", 2): "1078 us; 294 us",
    ("16 MiB", 2): "4956 us; 3235 us",
    ("64 MiB", 2): "33.9 ms; 30.8 ms",
    ("ResNet-50", 2): "64.9 ms; 72.1 ms",
    ("ResNet-50, float16", 2): "39-50 ms",
    ("BERT-base", 2): "240 ms",
    ("1,000 x 1 KiB", 2): "5.8 ms; 5.3-8.5 ms",
    ("broadcast 64 MiB", 2): "13.7 ms",
    ("allgather 64 MiB", 2): "87.5 ms",
    ("alltoall 64 MiB", 2): "45.3 ms",
    ("reducescatter 64 MiB", 2): "93.9 ms",
    ("4 B", 4): "2108 us; 341 us",
    ("1 KiB", 4): "1141 us; 347 us",
    ("64 KiB", 4): "2150 us; 392 us",
    ("1 MiB", 4): "2700 us; 1638 us",
    ("16 MiB", 4): "14.5 ms; 17.6 ms",
    ("64 MiB", 4): "101 ms; 114 ms",
    ("ResNet-50", 4): "131 ms; 139 ms",
}
UNITS = {"us": 1e-6, "ms": 1e-3}
ADASUM = {
    ("1 MiB", 2): "0.50-1.07 ms",
    ("64 MiB", 2): "27 ms",
    ("ResNet-50", 2): "57-68 ms",
    ("1 MiB", 4): "2.7 ms",
    ("64 MiB", 4): "79 ms",
    ("ResNet-50", 4): "150 ms",
}
# Steps a second of training_bench.py's model, and their share of those without communication.
TRAINING = {"Horovod, quoted": ("20", "0.29"), "Horovod tuned, quoted": ("27", "0.39")}
IDLE = "Horovod, quoted: merely initialised it leaves 0.67 of the steps (46 of 68.5 a second)."


def best(text: str) -> float:
    """Seconds: the shortest time in a cell such as "1071 us; 5.3-8.5 ms"."""
    return min(float(number.split("-")[0]) * UNITS[unit]
               for number, unit in (part.split() for part in text.split("; ")))
