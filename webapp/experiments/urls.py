from django.urls import path

from webapp.experiments import views

urlpatterns = [
    path("w/<uuid:public_id>/experiments/new", views.new, name="experiment-new"),
    path("experiments/<uuid:public_id>/progress", views.progress, name="experiment-progress"),
    path("experiments/<uuid:public_id>/start", views.start, name="experiment-start"),
    path("experiments/<uuid:public_id>/cancel", views.cancel, name="experiment-cancel"),
    path("experiments/<uuid:public_id>/resume", views.resume, name="experiment-resume"),
]
