"""Lanes as policy, overrides with an end, and the queue of what waits for admission; the newest revision has the
functions.
"""

from alembic import op
from safepoint.ledger import functions

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and tables."""
    driver = functions.driver_of(op.get_bind())
    functions.revise(driver, "0005_lanes")


def downgrade() -> None:
    """There is no way back, and none is needed: an earlier release works on this schema."""
    raise NotImplementedError("restore a backup instead")
