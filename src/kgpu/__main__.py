"""``python -m kgpu`` is the command line."""

import sys

from kgpu.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
