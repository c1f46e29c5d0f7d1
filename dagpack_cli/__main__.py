"""``python -m dagpack_cli``."""

from dagpack_cli.cli import main

if __name__ == "__main__":
    main()
