"""Budgets that a run shares with its children, reservations of steps, and the functions as they are now."""

from importlib.resources import files

from alembic import op
from safepoint.ledger import functions

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add table and columns, give open runs their budget's row, and replace the functions."""
    driver = op.get_bind().connection.driver_connection
    assert driver is not None  # a migration always has a connection
    functions.replace(driver)
    driver.execute(
        files(__package__ or "safepoint.ledger.migrations.versions").joinpath("0003_budgets.sql").read_text()
    )


def downgrade() -> None:
    """There is no way back: what has been spent must not be forgotten."""
    raise NotImplementedError("restore a backup instead")
