"""``python -m verniermq.cli broker``: the same as the command ``verniermq``, for where it is not on the path."""

from verniermq.cli import main

if __name__ == "__main__":
    main()
