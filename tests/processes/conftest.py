"""Marks of these tests; ../python/conftest.py says what they mean."""


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: .ci/run leaves it out")
