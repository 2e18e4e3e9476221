"""`python -m bridge` is the command `acp-matrix-bridge`."""

import sys

from bridge.cli import main

if __name__ == "__main__":
    sys.exit(main())
