from django.apps import AppConfig


class CoreConfig(AppConfig):
    name = "webapp.core"
    default_auto_field = "django.db.models.BigAutoField"
