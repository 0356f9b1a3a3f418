"""Budgets that a run shares with its children, and reservations of steps; the newest revision has the functions."""

from importlib.resources import files

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add table and columns, and give open runs their budget's row."""
    driver = op.get_bind().connection.driver_connection
    assert driver is not None  # a migration always has a connection
    driver.execute(
        files(__package__ or "safepoint.ledger.migrations.versions").joinpath("0003_budgets.sql").read_text()
    )


def downgrade() -> None:
    """There is no way back: what has been spent must not be forgotten."""
    raise NotImplementedError("restore a backup instead")
