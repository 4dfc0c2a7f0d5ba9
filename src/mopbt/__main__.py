"""``python -m mopbt`` is ``mopbt``."""

from mopbt.cli import main

if __name__ == "__main__":
    main()
