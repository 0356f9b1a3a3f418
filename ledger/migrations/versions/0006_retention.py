"""Retention: what remains of a pruned run, and who refers to which artifact; the newest revision has the functions."""

from alembic import op
from safepoint.ledger import functions

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables and indexes."""
    driver = functions.driver_of(op.get_bind())
    functions.revise(driver, "0006_retention")


def downgrade() -> None:
    """There is no way back, and none is needed: an earlier release works on this schema."""
    raise NotImplementedError("restore a backup instead")
