"""``python -m mopbt`` is ``mopbt``."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C also ends it quietly while it is still being imported."""
    try:
        from mopbt.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
