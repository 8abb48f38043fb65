from django.urls import path

from webapp.pages import views

urlpatterns = [
    path("w/<uuid:public_id>/", views.workspace, name="workspace"),
    path("experiments/<uuid:public_id>/", views.experiment, name="experiment"),
    path("experiments/<uuid:public_id>/estimate", views.make_estimate, name="experiment-estimate"),
]
