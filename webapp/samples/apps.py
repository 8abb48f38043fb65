from django.apps import AppConfig


class SamplesConfig(AppConfig):
    name = "webapp.samples"
    default_auto_field = "django.db.models.BigAutoField"
