"""Where this Python's packages lie, which may have brought MPI, NCCL and cuBLAS."""

import os
import site
import sys

_OF_PACKAGES = ("site-packages", "dist-packages")


def python_prefixes() -> str:
    """As HORON_PYTHON_PREFIX has them, ':' between: this Python's, then those of other packages
    that it imports, a user's (pip install --user) or those below a virtual environment."""
    found = [sys.prefix]
    if site.ENABLE_USER_SITE:
        found.append(site.getuserbase())
    for folder in (folder for folder in sys.path if isinstance(folder, str)):
        prefix, of_packages = os.path.split(os.path.normpath(folder))
        if of_packages in _OF_PACKAGES:  # PREFIX/lib/python3.11/site-packages
            found.append(os.path.dirname(os.path.dirname(prefix)))
    return os.pathsep.join(dict.fromkeys(found))
