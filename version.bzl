"""The version of all wheels."""

VERSION = "0.1.0"
