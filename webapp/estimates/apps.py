from django.apps import AppConfig


class EstimatesConfig(AppConfig):
    name = "webapp.estimates"
    default_auto_field = "django.db.models.BigAutoField"
