"""A Django site of one page, called through its WSGI handler: an event with a path in, status and HTML out."""

import io
from pathlib import Path

import django
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.shortcuts import render
from django.urls import path

PLANETS = [
    {"name": name, "moons": moons, "year_days": year_days}
    for name, moons, year_days in (
        ("Mercury", 0, 88.0),
        ("Venus", 0, 224.7),
        ("Earth", 1, 365.2),
        ("Mars", 2, 687.0),
    )
]

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="only for this demonstration",
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "DIRS": [Path(__file__).with_name("templates")],
        }
    ],
)
django.setup()


def planets(request):
    return render(request, "planets.html", {"planets": PLANETS, "who": request.GET.get("who", "world")})


urlpatterns = [path("planets/", planets)]
application = WSGIHandler()


def handler(event, context):
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": event["path"],
        "QUERY_STRING": event.get("query", ""),
        "SERVER_NAME": "demo",
        "SERVER_PORT": "80",
        "wsgi.input": io.BytesIO(),
        "wsgi.url_scheme": "http",
    }
    answer = {}

    def start_response(status, headers):
        answer.update(statusCode=int(status.split()[0]), headers=dict(headers))

    answer["body"] = b"".join(application(environ, start_response)).decode()
    return answer
