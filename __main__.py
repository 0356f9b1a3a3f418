"""The command line's entry: `safepoint` and `python -m safepoint`."""

from .cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
