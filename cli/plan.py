"""`lanes plan`: stub."""
def plan() -> None:
    """Stub."""
