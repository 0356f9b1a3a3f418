"""Budgets that a run shares with its children, and reservations of steps; the newest revision has the functions."""

from alembic import op
from safepoint.ledger import functions

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add table and columns, and give open runs their budget's row."""
    driver = functions.driver_of(op.get_bind())
    functions.revise(driver, "0003_budgets")


def downgrade() -> None:
    """There is no way back: what has been spent must not be forgotten."""
    raise NotImplementedError("restore a backup instead")
