"""List the verifications of a study in a table."""

from collections.abc import Sequence

from oppa.report.record import Section
from oppa.tuning.verify.past import PastVerification

COLUMNS = (">verification", "date", "status", "verdict", "changed since the study")


def section(verifications: Sequence[PastVerification]) -> Section:
    """Return the table of a study's verifications, oldest first."""
    text = "oppa verify measured the winner and its reference again, as after an upgrade."
    return Section(title="Verified again", text=text, columns=COLUMNS, rows=[row(each) for each in verifications])


def row(each: PastVerification) -> tuple[str, ...]:
    """Return a verification as the cells of COLUMNS."""
    return str(each.number), each.date, each.status, each.summary, ", ".join(each.changed)
