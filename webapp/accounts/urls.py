from django.contrib.auth.views import LogoutView
from django.urls import path

from webapp.accounts import views

urlpatterns = [
    path("", views.workspaces, name="workspaces"),
    path("sign-in", views.SignIn.as_view(), name="sign-in"),
    path("sign-out", LogoutView.as_view(), name="sign-out"),
]
