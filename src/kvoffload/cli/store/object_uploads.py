"""The part of `kvoffload du` and `gc` that is about uploads in parts that never ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.store_view import NamespaceView
from kvoffload.tiers.obj.trouble import ObjectError, Trouble
from kvoffload.tiers.obj.uploads import Unseen, UploadPlan, open_uploads

_UNSUPPORTED = (
    "this store does not list them: give the bucket a rule that aborts incomplete uploads after a day"
)


@dataclass(frozen=True, slots=True)
class SweptUploads:
    """What was found."""

    plan: UploadPlan | None
    """None: they could not be looked for."""
    reason: str = ""
    """Why they could not, or why some were not removed."""
    removed: int = 0
    is_dry: bool = True

    def as_json(self) -> dict[str, object]:
        """For programs."""
        if self.plan is None:
            return {"seen": False, "reason": self.reason}
        counts = {"left_over": len(self.plan.left), "young": self.plan.young, "of_others": self.plan.foreign}
        return {"seen": True, **counts, "removed": self.removed, "reason": self.reason}

    def text(self) -> str:
        """One line for people."""
        start = "uploads in parts that never ended: "
        if self.plan is None:
            return f"{start}not looked for ({self.reason})"
        done = "would be removed by gc" if self.is_dry else f"{self.removed} removed"
        rest = f"{self.plan.young} too young, {self.plan.foreign} of others (never touched)"
        return f"{start}{len(self.plan.left)} ({done}), {rest}{f'; {self.reason}' if self.reason else ''}"


def sweep_uploads(config: ObjTierConfig, views: Sequence[NamespaceView], *, dry_run: bool) -> SweptUploads:
    """Look for uploads of these namespaces that never ended, and remove those that are older than `orphan_grace_s`.

    Raises ConfigError: the credentials file cannot be used.
    """

    def is_ours(name: str) -> bool:
        return any(view.around.place.is_data(name) for view in views)

    removed = 0
    plan: UploadPlan | None = None
    try:
        uploads = open_uploads(config, os.environ)
        if isinstance(uploads, Unseen):
            return SweptUploads(None, uploads.reason)
        plan = uploads.plan(is_ours, config.orphan_grace_s)
        if not dry_run:
            for upload in plan.left:
                uploads.abort(upload)
                removed += 1
    except ObjectError as error:
        reason = _UNSUPPORTED if error.trouble is Trouble.UNSUPPORTED else str(error)
        return SweptUploads(plan, reason, removed, dry_run)
    return SweptUploads(plan, "", removed, dry_run)
