"""``python -m mopbt`` is ``mopbt``."""


def main() -> None:
    """Run the command line."""
    # Imported late, so that the module can be imported quickly.
    from mopbt.cli import main as run

    run()


if __name__ == "__main__":
    main()
