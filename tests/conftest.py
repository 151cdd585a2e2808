"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# No deadline: a shared machine stalls for longer than any example takes. Derandomised, so that a failure in one place
# is a failure in every other; --hypothesis-profile=explore looks for new ones.
settings.register_profile("search-gym", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("search-gym")
