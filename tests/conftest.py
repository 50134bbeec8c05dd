"""What holds for all tests: property tests are about answers, not about how long a busy machine takes."""

from hypothesis import settings

settings.register_profile("steppe", deadline=None)
settings.load_profile("steppe")
