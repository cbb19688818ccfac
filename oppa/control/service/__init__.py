"""Serve controllers to training jobs over WebSocket: the service, the client of its protocol, its journal, metrics and page."""
