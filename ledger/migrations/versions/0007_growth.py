"""Growth: lists that are read off an index however many runs there are; the newest revision has the functions."""

from alembic import op
from safepoint.ledger import functions

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the indexes."""
    driver = functions.driver_of(op.get_bind())
    functions.revise(driver, "0007_growth")


def downgrade() -> None:
    """There is no way back, and none is needed: an earlier release works on this schema."""
    raise NotImplementedError("restore a backup instead")
