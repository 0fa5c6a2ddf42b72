"""Settings that hold for all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes depends on the machine; what it must show does not.
settings.register_profile(
    "warmroute", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("warmroute")
