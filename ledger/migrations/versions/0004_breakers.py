"""Breakers: what many processes share of a dependency's state; the newest revision has the functions."""

from alembic import op
from safepoint.ledger import functions

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables."""
    driver = functions.driver_of(op.get_bind())
    functions.revise(driver, "0004_breakers")


def downgrade() -> None:
    """There is no way back, and none is needed: an earlier release works on this schema."""
    raise NotImplementedError("restore a backup instead")
