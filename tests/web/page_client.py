"""A client of the page that tests of its boards share: to make an application takes a twentieth of a second."""

from __future__ import annotations

from fastapi.testclient import TestClient

from steptime.web.app import app_for

CLIENT = TestClient(app_for(hosts=("*",)))
