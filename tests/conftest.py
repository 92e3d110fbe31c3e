"""A busy machine makes no example wrong (no deadlines), and every run draws the same ones.

Others are drawn by `pytest --hypothesis-profile=default`.
"""

from hypothesis import settings

settings.register_profile("patient", deadline=None, derandomize=True)
settings.load_profile("patient")
