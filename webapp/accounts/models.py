from __future__ import annotations

from typing import ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models
from django.db.models.functions import Lower

from webapp.core.models import PublicRow


class UserManager(BaseUserManager["User"]):
    def create_user(self, email: str, password: str | None = None, name: str = "") -> User:
        user = self.model(email=email.strip(), name=name)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str, name: str = "") -> User:
        user = self.create_user(email, password, name)
        user.is_staff = user.is_superuser = True
        user.save(using=self._db, update_fields=["is_staff", "is_superuser"])
        return user

    def get_by_natural_key(self, username: str | None) -> User:
        return self.get(email__iexact=username)


class User(AbstractBaseUser, PermissionsMixin):
    """A person; signs in with an e-mail address."""

    email = models.EmailField(unique=True)
    name = models.CharField(max_length=120, blank=True)
    is_active = models.BooleanField(default=True)
    is_staff = models.BooleanField(default=False)
    date_joined = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[UserManager] = UserManager()

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        constraints = (models.UniqueConstraint(Lower("email"), name="user_email_ci_unique"),)

    def __str__(self) -> str:
        return self.name or self.email


class Role(models.TextChoices):
    CONSULTANT = "consultant", "Consultant"
    CLIENT = "client", "Client"


class Workspace(PublicRow):
    """One client's samples, experiments and estimates."""

    name = models.CharField(max_length=120)
    members = models.ManyToManyField(User, through="Membership", related_name="workspaces")

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """A consultant changes things; a client reads."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE)
    user = models.ForeignKey(User, on_delete=models.CASCADE)
    role = models.CharField(max_length=12, choices=Role.choices)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("workspace", "user"), name="membership_unique"),
        )

    def __str__(self) -> str:
        return f"{self.user_id} in {self.workspace_id} as {self.role}"
