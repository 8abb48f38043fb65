from django.apps import AppConfig


class ComparisonsConfig(AppConfig):
    name = "webapp.comparisons"
    default_auto_field = "django.db.models.BigAutoField"
