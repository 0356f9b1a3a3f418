"""The whole ledger of the first release: tables, then the protocol's functions, as the SQL files state them."""

from importlib.resources import files

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

PARTS = ("core", "clock", "runs", "enqueue", "claim", "commit", "waits", "nodes", "dispatch", "control", "scan", "once")


def upgrade() -> None:
    """Create everything in the schema `safepoint` and take the functions away from PUBLIC (P42)."""
    # Functions may name functions of a later part; bodies are checked when they run.
    op.execute("SET LOCAL check_function_bodies = off")
    for part in PARTS:
        text = files("safepoint.ledger").joinpath(f"{part}.sql").read_text(encoding="utf-8")
        # The driver itself: without parameters it sends several statements at once and leaves % alone.
        driver = op.get_bind().connection.driver_connection
        assert driver is not None  # a migration always has a connection
        driver.execute(text)
    op.execute("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA safepoint FROM PUBLIC")


def downgrade() -> None:
    """There is nothing below the first release."""
    raise NotImplementedError("restore a backup instead")
