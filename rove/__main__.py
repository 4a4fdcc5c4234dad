"""`python -m rove`: the command `rove`."""

from rove.cli.main import main

if __name__ == "__main__":
    main()
