"""Which processes live in a world."""

from pathlib import Path


def processes() -> dict[int, str]:
    """Command lines of all living processes of this world, by number."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state not in "ZX":
                found[int(folder.name)] = line
    return found
