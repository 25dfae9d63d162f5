"""`python -m horon.launcher` is horonrun."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
