"""``python -m kgpu`` is the command line."""

from kgpu.cli.main import main

if __name__ == "__main__":
    main()
