"""Marks of these tests; ../python/conftest.py says what they mean."""


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: more than half a minute; .ci/run leaves it out")
