from __future__ import annotations

from django.db import models
from django.utils import timezone

from webapp.accounts.models import User, Workspace
from webapp.core.models import PublicRow


class Estimate(PublicRow):
    """A frozen, versioned document of costs. Never changed; re-pricing makes a new version.

    It refers to its experiment by public id only: an estimate outlives what it was made from,
    and the public page may know estimates and nothing else.
    """

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="estimates")
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    experiment_public_id = models.UUIDField(null=True, blank=True, db_index=True)
    arm = models.CharField(max_length=60, blank=True)
    title = models.CharField(max_length=200)
    version = models.PositiveIntegerField(default=1)
    document = models.JSONField()
    """calculator.estimate.Estimate as ``to_document`` writes it"""
    sha256 = models.CharField(max_length=64)
    """Of the document's canonical JSON; checked whenever it is shown."""

    class Meta:
        ordering = ("-created_at",)
        constraints = (
            models.UniqueConstraint(
                fields=("experiment_public_id", "arm", "version"), name="estimate_version_unique"
            ),
        )

    def __str__(self) -> str:
        return self.title


class ShareLink(PublicRow):
    """An address that renders one estimate and nothing else. Only the token's hash is kept."""

    estimate = models.ForeignKey(Estimate, on_delete=models.CASCADE, related_name="links")
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    token_sha256 = models.CharField(max_length=64, unique=True)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    views = models.PositiveIntegerField(default=0)

    workspace_path = "estimate__workspace"
    """Where ``accounts.access.owned`` finds whose it is."""

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"link to {self.estimate_id} until {self.expires_at:%Y-%m-%d}"

    @property
    def workspace(self) -> Workspace:
        return self.estimate.workspace

    @property
    def works(self) -> bool:
        return self.revoked_at is None and self.expires_at > timezone.now()
