"""What all wheels say about themselves: their version, and where the project is."""

VERSION = "2.0.0"

# The repository; docs/releasing.md says what follows it.
URL = "https://github.com/jaxmg/jaxmg"
