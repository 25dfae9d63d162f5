"""Whether the kernel grants huge pages to shared memory, as Horon asks it for shared tensors, and
how much of a process's is in them."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable
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
            inode = str(os.fstat(file).st_ino)
            return mapped(lambda fields: fields[4] == inode)
    finally:
        os.close(file)


def mapped(counts: Callable[[list[str]], bool]) -> int:
    """Bytes of huge pages in those mappings of shared memory that count, by the fields of their
    lines in /proc/self/smaps: where, rights, offset, device, inode, and a name if there is one."""
    kib, inside = 0, False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            fields = line.split(None, 5)
            if not fields[0].endswith(":"):
                inside = counts(fields)
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
