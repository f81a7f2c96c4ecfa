"""`python -m powerspherical …`: the command, by the module's name."""

from powerspherical.cli import main

if __name__ == "__main__":
    main()
