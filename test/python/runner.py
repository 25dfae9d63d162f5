"""One rank of a test: runs the check_... functions of the files given, in order, on all ranks; of
FILE::WORD those with the word in their names.

A file with `OWN_LIFE = True` calls init() and shutdown() itself; the others find Horon initialised.
"""

import gc
import importlib.util
import sys
import time
import traceback
from pathlib import Path

import torch

import horon.torch as hvd

gc.freeze()  # PyTorch's modules are here to stay: not to look through them spares 0.4 s at exit


def load(path):
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_checks(module, word):
    checks = [name for name in vars(module) if name.startswith("check_") and word in name]
    assert checks, f"{module.__name__} has no checks of '{word}'"
    for name in checks:
        torch.manual_seed(1)
        if not hvd.is_initialized() or hvd.rank() == 0:
            print(f"{module.__name__}.{name}", flush=True)  # the last one is where a job hung
        begun = time.monotonic()
        try:
            getattr(module, name)()
        except BaseException:
            print(f"rank {hvd.rank() if hvd.is_initialized() else '?'}: {name} failed", flush=True)
            traceback.print_exc()
            raise SystemExit(1) from None
        took = time.monotonic() - begun
        if took > 2 and hvd.is_initialized() and hvd.rank() == 0:
            print(f"  took {took:.1f} s", flush=True)
    return len(checks)


def main():
    torch.set_num_threads(1)
    count = 0
    for given in sys.argv[1:]:
        path, _, word = given.partition("::")
        module = load(path)
        if not getattr(module, "OWN_LIFE", False):
            hvd.init()
        count += run_checks(module, word)
        if not hvd.is_initialized():
            hvd.init()
        if hvd.rank() == 0:
            print(f"{module.__name__}: ok", flush=True)
    assert count > 0
    print(f"done {hvd.rank()}", flush=True)


main()
