"""`slipstream config check`: what a configuration comes to, for people who look before they serve.

Lines on the models, the memory they need per device, speculation and access, and what this machine lacks for it.
Reads files and counts devices; fetches nothing.
"""

from server.config_report.lines import report

__all__ = ["report"]
