"""The tables of the first release. The protocol's functions are put in place by the newest revision."""

from importlib.resources import files

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

PARTS = ("core",)


def upgrade() -> None:
    """Create the tables in the schema `safepoint`, and take their trigger's function away from PUBLIC (P42)."""
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
