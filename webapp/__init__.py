"""The Django project: people, rows and pages."""
