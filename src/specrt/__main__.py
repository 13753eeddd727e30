"""`python -m specrt` is the command `specrt`."""

import sys

from specrt.cli import main

if __name__ == "__main__":
    sys.exit(main())
