"""Plug-in `spec_dflash`: drafts from a DFlash block drafter."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ninfer_core import hookimpl
from ninfer_core.hookspecs import DraftBackendEntry, TargetFacts, Verdict

MOST_DRAFTS = 15
"""A block of 16 rows, of which the first is the token that the drafts go on from."""

USUAL_DRAFTS = 7


def _accepts(component: str, target: TargetFacts) -> Verdict:
    from ninfer_spec_dflash.fit import verdict

    return verdict(component, target)


@hookimpl
def ninfer_draft_backends() -> Iterable[DraftBackendEntry]:
    """Offer the drafters of both generations; an artifact may hold either or both."""
    for name, summary, architecture in (
        ("dflash", "Draft a block of tokens at once with a DFlash model", "DFlashDraftModel"),
        (
            "dflash2",
            "Draft a block of tokens and choose among its candidates with a DFlash2 model",
            "DFlash2DraftModel",
        ),
    ):
        yield DraftBackendEntry(
            name=name,
            summary=summary,
            max_drafts=MOST_DRAFTS,
            usual_drafts=USUAL_DRAFTS,
            load=f"ninfer_spec_dflash.drafter:open_{name}",
            accepts=partial(_accepts, name),
            architectures=(architecture,),
            describe="ninfer_spec_dflash.convert:describe",
        )
