"""Versions: an index for the runs of one version of a flow; the functions as they are now."""

from alembic import op
from safepoint.ledger import functions

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the index, and replace the functions."""
    driver = functions.driver_of(op.get_bind())
    functions.revise(driver, "0008_versions")
    functions.replace(driver)


def downgrade() -> None:
    """There is no way back, and none is needed: an earlier release works on this schema."""
    raise NotImplementedError("restore a backup instead")
