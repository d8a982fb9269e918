"""Telemetry: metrics, spans and what is sent to a collector. Import `server.telemetry.telemetry`."""
