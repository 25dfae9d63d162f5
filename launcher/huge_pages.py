"""Whether the kernel grants huge pages to shared memory, as Horon asks it for shared tensors."""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

_BYTES = 8 << 20
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def granted() -> int:
    """Bytes of huge pages of 8 MiB of shared memory that were asked for and touched."""
    file = os.memfd_create("horon huge pages", os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, _BYTES)
        with mmap.mmap(file, _BYTES) as memory:
            try:
                memory.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                return 0  # a kernel without them
            for page in range(0, _BYTES, mmap.PAGESIZE):
                memory[page] = 1
            return _mapped(os.fstat(file).st_ino)
    finally:
        os.close(file)


def _mapped(inode: int) -> int:
    """Of this process's mappings of that file."""
    kib, inside = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = fields[4] == str(inode)
        elif inside and fields[0] in ("ShmemPmdMapped:", "FilePmdMapped:"):
            kib += int(fields[1])
    return kib << 10


def sentence(got: int) -> str:
    """What was got, and what decides it."""
    try:
        setting = re.search(r"\[(\w+)\]", _SETTING.read_text(encoding="utf-8"))
    except OSError:
        setting = None
    said = f"{_SETTING} is {setting[1]}" if setting else f"no {_SETTING}"
    wish = "" if got else "; with advise Horon's shared tensors would get them"
    return f"{got >> 20} of {_BYTES >> 20} MiB ({said}{wish})"
