"""``python -m deviceguard``."""

from deviceguard.cli.main import main

if __name__ == "__main__":
    main()
