from django.urls import path

from webapp.comparisons import views

urlpatterns = [
    path("experiments/<uuid:public_id>/evidence", views.evidence, name="experiment-evidence"),
    path(
        "experiments/<uuid:public_id>/evidence.csv",
        views.evidence_csv,
        name="experiment-evidence-csv",
    ),
    path(
        "experiments/<uuid:public_id>/runs/<int:run>/trials/<int:trial>/requests/<int:sequence>",
        views.request_chunks,
        name="experiment-request",
    ),
]
