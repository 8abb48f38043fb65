from django.urls import path

from webapp.samples import views

urlpatterns = [
    path("w/<uuid:public_id>/samples/new", views.new, name="sample-new"),
    path("samples/<uuid:public_id>/", views.detail, name="sample"),
    path("samples/<uuid:public_id>/status", views.status, name="sample-status"),
    path("samples/<uuid:public_id>/delete", views.delete, name="sample-delete"),
]
