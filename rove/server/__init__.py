"""Serve any client as an OpenAI-compatible endpoint."""

from rove.server.admission import is_loopback
from rove.server.app import make_app
from rove.server.listen import base_url_of, listening, serve

__all__ = ["base_url_of", "is_loopback", "listening", "make_app", "serve"]
