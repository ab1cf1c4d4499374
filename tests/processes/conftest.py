"""Markers of these tests; ../python/conftest.py explains them."""


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: .ci/run leaves it out")
