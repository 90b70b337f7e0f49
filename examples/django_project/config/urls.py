from django.contrib import admin
from django.urls import include, path

from shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("outbox/", include("outbox_tasks.django.page")),
    path("orders/", views.place_order),
    path("orders/<int:pk>/", views.show_order),
    path("orders/<int:pk>/stars/", views.rate_order),
    path("results/<uuid:id>/", views.show_result),
]
