"""What makes another look at the paused and the waiting worth while."""

from __future__ import annotations


class CapacityEvents:
    """Set by queue and capacity changes, cleared by the scans; plain decoding sets neither."""

    def __init__(self) -> None:
        self.resume_due = False
        self.admit_due = False

    def changed(self) -> None:
        """Room came back, or a context transaction settled."""
        self.resume_due = True
        self.admit_due = True

    def queued(self) -> None:
        """The queue has another member or another head."""
        self.admit_due = True
