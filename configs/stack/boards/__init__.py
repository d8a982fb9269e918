"""Grafana's dashboards as code. `python -m configs.stack.boards` writes them to configs/stack/grafana/dashboards."""
