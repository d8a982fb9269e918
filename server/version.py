"""The version of the program, as it is installed."""

from importlib.metadata import version

VERSION = version("slipstream")
