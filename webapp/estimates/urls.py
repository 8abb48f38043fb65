from django.urls import path

from webapp.estimates import public_views, views

urlpatterns = [
    path("estimates/<uuid:public_id>/", views.detail, name="estimate"),
    path("estimates/<uuid:public_id>/share", views.share, name="estimate-share"),
    path("links/<uuid:public_id>/revoke", views.revoke, name="link-revoke"),
    path("s/<str:token>/", public_views.shared, name="shared"),
    path("s/<str:token>/estimate.json", public_views.shared_json, name="shared-json"),
]
