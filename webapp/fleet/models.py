from __future__ import annotations

from django.db import models

from webapp.core.models import PublicRow


class TargetModel(PublicRow):
    """A model that the operator allows engines to serve. The web never names a path."""

    class Engine(models.TextChoices):
        VLLM = "vllm", "vLLM"
        SIMULATOR = "simulator", "Simulator"

    name = models.CharField(max_length=120, unique=True)
    engine = models.CharField(max_length=10, choices=Engine.choices)
    location = models.CharField(max_length=400)
    """A local folder or a Hugging Face id."""
    revision = models.CharField(max_length=64, blank=True)
    dtype = models.CharField(max_length=12, default="auto")
    max_model_len = models.PositiveIntegerField(null=True, blank=True)
    enforce_eager = models.BooleanField(default=False)
    draft_locations = models.JSONField(default=list, blank=True)
    """[{"name": shown, "location": folder or id}]: drafts with this model's vocabulary."""
    simulator = models.JSONField(default=dict, blank=True)
    notice = models.TextField(blank=True)
    """Terms that come with the weights; shown where the model is chosen."""
    enabled = models.BooleanField(default=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Slot(models.Model):
    """One place where one engine can run: a GPU, or the CPU of a host."""

    host = models.CharField(max_length=120)
    device = models.CharField(max_length=40)
    """``cpu`` or ``gpu:0``"""
    label = models.CharField(max_length=120, blank=True)
    enabled = models.BooleanField(default=True)
    seen_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("host", "device")
        constraints = (models.UniqueConstraint(fields=("host", "device"), name="slot_unique"),)

    def __str__(self) -> str:
        return f"{self.host} {self.device}"
